"""HTML of what the pages share: the bar of runs, notices, tables. Every value goes through `harmless`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .figures import colour
from .text import attribute, harmless, middle_cut, run_name

_CUT = 80  # characters of one setting
STATUS = {"running": "training", "complete": "complete", "interrupted": "interrupted", "failed": "failed"}


def setting(**values) -> str:
    """The attribute that makes a button change the view."""
    return f'data-set="{attribute(json.dumps(values))}"'


def choice(values: dict, name: str, chosen: bool) -> str:
    """A button of a row of choices; `name` is HTML already."""
    return f'<button type="button" {setting(**values)} aria-pressed="{"true" if chosen else "false"}">{name}</button>'


def notices(problems: Sequence[str]) -> str:
    """What went wrong, said once, where the visitor sees it."""
    shown = list(dict.fromkeys(problems))
    items = "".join(f"<li>{harmless(problem, 400)}</li>" for problem in shown[:8])
    more = f"<li>and {len(shown) - 8} more</li>" if len(shown) > 8 else ""
    return f'<div class="notice" role="status"><ul>{items}{more}</ul></div>' if shown else ""


def empty(title: str, *lines: str, kind: str = "") -> str:
    """The empty state: what is missing and what to do. The lines are this app's own HTML."""
    return f'<div class="empty {kind}"><h2>{title}</h2>{"".join(f"<p>{line}</p>" for line in lines)}</div>'


NO_RUNS = empty(
    "No runs yet",
    "Start with run directories: <code>openrlhf-ebpo space --runs runs/quickstart</code>",
    "A training run writes one, <code>bash scripts/quickstart.sh</code> makes the smallest. A data set repository of the Hub "
    "works too: <code>--runs owner/name</code>.",
    "The page Understand needs none.",
    kind="nothing",
)


def run_bar(chosen: Sequence[dict], others: Sequence[str], allowed: Sequence[str]) -> str:
    """The chosen runs as chips, a menu of the others, and a field for a Hub repository.

    Args:
        chosen: key, number, status, of each run in the view.
    """
    keys = [run["key"] for run in chosen]
    chips = "".join(_chip(run, [key for key in keys if key != run["key"]]) for run in chosen)
    return f'<div class="runs" role="group" aria-label="Runs">{chips}{_menu(keys, others)}{_hub_field(allowed)}</div>'


def _chip(run: dict, rest: list[str]) -> str:
    key, status = run_name(run["key"], 44), STATUS.get(run["status"], "")
    remove = (
        f'<button type="button" class="remove" {setting(runs=rest)} aria-label="Take {attribute(run["key"], 60)} out of the view">×</button>'
        if rest
        else ""
    )
    live = ' live"' if run["status"] == "running" else '"'
    dot = f'<i class="dot{live} style="background:var(--{colour(run["number"])})"></i>'
    return f'<span class="chip">{dot}<b>{key}</b><small>{harmless(status)}</small>{remove}</span>'


def _menu(keys: list[str], others: Sequence[str]) -> str:
    if not others:
        return ""
    options = "".join(
        f'<option value="{attribute(key)}">{harmless(middle_cut(key, 60), 60)}</option>' for key in others[:500]
    )
    return f'<select data-name="add" {setting()} aria-label="Add a run"><option value="">Add a run…</option>{options}</select>'


def _hub_field(allowed: Sequence[str]) -> str:
    if not allowed:
        return ""
    names = attribute(", ".join(allowed), 120)
    return (
        f'<input data-name="add" {setting()} type="text" placeholder="owner/name on the Hub" spellcheck="false" '
        f'aria-label="Add a data set repository of the Hub (allowed: {names})">'
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, kind: str = "") -> str:
    """Cells are HTML already, the caption is not; the first column is a row header."""
    heads = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{attribute(caption, 200)}"><table class="{kind}">'
        f"<caption>{harmless(caption, 200)}</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def flattened(settings: dict, prefix: str = "", depth: int = 0) -> dict[str, str]:
    """Nested settings with dotted names, values as short text."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if len(found) > 2000:
            break
        if isinstance(value, dict) and depth < 8:
            found |= flattened(value, f"{prefix}{name}.", depth + 1)
        else:
            found[f"{prefix}{name}"] = _short(value)
    return found


def _short(value) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"  # 9e-07, not 8.999999999999999e-07
    return value if isinstance(value, str) else json.dumps(value, default=str)


def different_settings(runs: Sequence[tuple[str, dict]]) -> list[tuple[str, list[str | None]]]:
    """(name, value in each run) of all settings in which the runs differ. runs: (key, run.json)."""
    flat = [flattened(_settings(about)) for _, about in runs]
    names = sorted({name for settings in flat for name in settings})
    rows = [(name, [settings.get(name) for settings in flat]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _settings(about: dict) -> dict:
    """Arguments and versions, without names of folders and times, which always differ."""
    args = about.get("args") if isinstance(about.get("args"), dict) else {}
    versions = about.get("versions") if isinstance(about.get("versions"), dict) else {}
    left_out = {("ckpt", "path"), ("ckpt", "output_dir"), ("logger", "run_dir")}
    kept = {
        section: {k: v for k, v in values.items() if (section, k) not in left_out and k != "wandb"}
        if isinstance(values, dict)
        else values
        for section, values in args.items()
    }
    return {**kept, "versions": versions}


def settings_table(runs: Sequence[tuple[str, int, dict]]) -> str:
    """What the runs do not share; runs: (key, number, run.json)."""
    if len(runs) < 2:
        return ""
    rows = different_settings([(key, about) for key, _, about in runs])
    if not rows:
        return '<section class="passage"><h2>Settings</h2><p>The runs have the same settings.</p></section>'
    head = [
        "setting",
        *[f'<i class="dot" style="background:var(--{colour(n)})"></i>{run_name(key, 32)}' for key, n, _ in runs],
    ]
    body = [[f"<code>{harmless(name, 80)}</code>", *[_cell(value) for value in values]] for name, values in rows[:200]]
    return f'<section class="passage"><h2>Settings that differ</h2>{table(head, body, "Settings that differ", "settings")}</section>'


def _cell(value: str | None) -> str:
    return '<span class="none">not set</span>' if value is None else f"<code>{harmless(value, _CUT)}</code>"
