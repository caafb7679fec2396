"""The results of learning.py in Markdown: paired differences with 95 % t-intervals, and what difference is noise.

A summary is what a run's tables need, one value a seed; --export writes all summaries to one file, which --table reads
like a folder of results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.cells import CELLS, LR, Cell, parsed
from lab.jobs import Learning
from lab.markdown_tables import table
from lab.measured import Record, recorded
from lab.statistics import interval
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.files import write_text

BASE = "group_norm"
OVERVIEW = ("ebpo", "james_stein", "score_weighted", "ebpo.robust")  # in the overview
DECODED = ("ebpo", "ebpo.robust", "raw_reward")  # of whose greedy success and pass@16 there is a table
PAIRS = (  # whose success is compared where answers are long or nearly all right
    *(("ebpo", BASE), ("ebpo.robust", BASE), ("raw_reward", BASE), ("ebpo.robust", "ebpo")),
    ("lab.variants:RobustPerSequence", "ebpo.robust"),
)
LEVEL = 0.75  # of GRPO's rise: the success at which rollouts, pass@64 and entropy are compared
SUMMARY_COLUMNS = (
    *("estimator", "success at the end", "minus GRPO's", "seeds ahead", "rollouts to {level:.2f}, in GRPO's"),
    *("pass@64 there", "entropy there", "pass@64 at the end", "gradient norm", "all-fail groups"),
)


def show(source: Path, cells: list[str], export: Path | None) -> None:
    """Print the tables of the results, and write their data to `export`.

    Raises:
        UsageError: there is no result.
    """
    summaries = [each for each in summarised(source) if each["cell"] in cells]
    tables = (overview(summaries), decoded(summaries), long_answers(summaries), details(summaries))
    print(*tables, sep="\n\n")
    if export:
        write_text(export, "[\n" + ",\n".join(json.dumps(each, separators=(",", ":")) for each in summaries) + "\n]\n")


def summarised(source: Path) -> list[dict]:
    """Summarise the results in a folder, or read an export.

    Raises:
        UsageError: there is no result, or results of networks of several sizes.
    """
    if source.is_file():
        return json.loads(source.read_text())
    names = {cell: name for name, cell in CELLS.items()}
    runs, sizes = [], set()
    for job, records in recorded(source, Learning):
        cell = names.get(Cell(**job["cell"]))
        if cell and job["order"] == "drawn":
            kept = {name: job[name] for name in ("estimator", "lr", "replicate")}
            runs.append(Run({"cell": cell, **kept}, list(records.values())))
            sizes.add((job["width"], job["layers"]))
    if not runs:
        raise UsageError(f"--output {source}: no result of learning.py in this folder")
    if len(sizes) > 1:
        raise UsageError(
            f"--output {source}: networks of several sizes, (width, layers) {sorted(sizes)}: one folder each"
        )
    base = {run.job["cell"]: run for run in runs if is_base(run.job)}
    return [summary(run, level(base[run.job["cell"]])) for run in runs if run.job["cell"] in base]


class Run(NamedTuple):
    """job: cell, estimator, lr and replicate, as a summary names them. records: of each seed, its curves."""

    job: dict
    records: list[Record]

    def values(self, name: str) -> np.ndarray:
        """(evaluations, seeds); the first evaluation, before any step, has no gradient."""
        return np.array([record[name] for record in self.records], float).T


def is_base(job: dict) -> bool:
    return job["estimator"] == BASE and is_common(job)


def level(run: Run) -> float:
    curve = run.values("pass@1").mean(1)
    return float(curve[0] + LEVEL * (curve[-1] - curve[0]))


def summary(run: Run, wanted: float) -> dict:
    success, pass16, entropy = (run.values(name) for name in ("pass@1", "pass@16", "entropy"))
    pass64 = run.values("pass@64") if "pass@64" in run.records[0] else np.full_like(success, np.nan)
    entropy = np.concatenate([entropy[:1], entropy])  # before the first step: as at the first evaluation
    at = {"rollouts_at": run.values("rollouts"), "pass64_at": pass64, "entropy_at": entropy}
    found = {
        "end": success[-1],
        "pass64": pass64[-1],
        "pass16": pass16[-1],
        "entropy": entropy[-1],
        "start": success[0],
        "pass16_start": pass16[0],
        "grad_norm": run.values("grad_norm").mean(0),
        "all_fail": run.values("all_fail")[0],
        **{name: where_reached(success, wanted, curve) for name, curve in at.items()},
    }
    if "greedy" in run.records[0]:
        found |= {"greedy_start": run.values("greedy")[0], "greedy": run.values("greedy")[-1]}
    if "length" in run.records[0]:
        found["length"] = run.values("length")[-1]
    numbers = {name: shortened(values) for name, values in found.items()}
    return {**run.job, "seeds": len(run.records), "level": round(wanted, 4), **numbers}


def where_reached(success: np.ndarray, wanted: float, curve: np.ndarray) -> np.ndarray:
    """`curve` (evaluations, seeds) where each seed's success first is `wanted`, between evaluations; NaN: never."""
    found = np.full(success.shape[1], np.nan)
    for seed, reached in enumerate((success >= wanted).T):
        if reached.any():
            i = max(int(reached.argmax()), 1)
            below, above = success[i - 1, seed], success[i, seed]
            share = (wanted - below) / (above - below) if above > below else 1.0
            found[seed] = curve[i - 1, seed] + np.clip(share, 0, 1) * (curve[i, seed] - curve[i - 1, seed])
    return found


def shortened(numbers: np.ndarray) -> list[float | None]:
    return [None if np.isnan(x) else float(f"{x:.4g}") for x in numbers]


# All regimes


def overview(summaries: list[dict]) -> str:
    """A row a regime: success at the end at the common learning rate."""
    columns = ["regime", "seeds", title(BASE), *(f"{title(name)} minus GRPO" for name in OVERVIEW), "smallest visible"]
    rows = []
    for name in CELLS:
        runs = {each["estimator"]: each for each in summaries if each["cell"] == name and is_common(each)}
        if base := runs.get(BASE):
            shown = [ahead_of(base, runs[each]) if each in runs else "" for each in OVERVIEW]
            again = replicated(name, summaries)
            noise = f"{visible(base, again):.3f}" if again else ""
            rows.append([CELLS[name].title, str(base["seeds"]), f"{np.mean(base['end']):.3f}", *shown, noise])
    return table(columns, rows)


def ahead_of(base: dict, run: dict) -> str:
    """The difference in success at the end, and over how many seeds where those are not all of `base`."""
    found, seeds = interval(difference(run, base)).text(), min(run["seeds"], base["seeds"])
    return found if seeds == base["seeds"] else f"{found} ({seeds} seeds)"


def decoded(summaries: list[dict]) -> str:
    """A row a regime: is the lead one of greedy decoding and of pass@16 too, or have samples only become more alike?"""
    columns = ["regime", "seeds", "start: T = 1 / greedy / pass@16", f"{title(BASE)} at the end"]
    columns += [f"{title(name)} minus GRPO: {what}" for what in ("greedy", "pass@16") for name in DECODED]
    rows = []
    for name in CELLS:
        runs = {each["estimator"]: each for each in summaries if each["cell"] == name and is_common(each)}
        base = runs.get(BASE, {})
        if "greedy" in base:
            levels = [three(base, "start", "greedy_start", "pass16_start"), three(base, "end", "greedy", "pass16")]
            leads = [
                interval(difference(runs[each], base, metric)).text() if "greedy" in runs.get(each, {}) else ""
                for metric in ("greedy", "pass16")
                for each in DECODED
            ]
            rows.append([CELLS[name].title, str(len(base["greedy"])), *levels, *leads])
    return table(columns, rows)


def long_answers(summaries: list[dict]) -> str:
    """A row a regime of scratchpads or nearly solved tasks: differences, and the smallest that would be seen."""
    columns = ["regime", "seeds", title(BASE), *(f"{title(one)} minus {title(other)}" for one, other in PAIRS)]
    rows = []
    for name, cell in CELLS.items():
        runs = {each["estimator"]: each for each in summaries if each["cell"] == name and is_common(each)}
        if BASE in runs and ("scratchpad" in cell.task or cell.start == 0.95):
            pairs = [(runs.get(one), runs.get(other)) for one, other in PAIRS]
            found = [interval(difference(one, other)) if one and other else None for one, other in pairs]
            texts = [f"{each.text()} (visible {each.visible:.3f})" if each else "" for each in found]
            rows.append([cell.title, str(runs[BASE]["seeds"]), f"{np.mean(runs[BASE]['end']):.3f}", *texts])
    return table(columns, rows)


def three(run: dict, *names: str) -> str:
    return " / ".join(mean(run[name], 3) for name in names)


def details(summaries: list[dict]) -> str:
    return "\n\n".join(text for name in CELLS if (text := cell_text(name, summaries)))


def is_common(job: dict) -> bool:
    return job["lr"] == LR and job["replicate"] == 0


def replicated(cell: str, summaries: list[dict]) -> dict | None:
    """GRPO again, with other random numbers."""
    key = (cell, BASE, LR, 1)
    return next((e for e in summaries if (e["cell"], e["estimator"], e["lr"], e["replicate"]) == key), None)


# One regime


def cell_text(name: str, summaries: list[dict]) -> str:
    """Its tables; empty where GRPO, which all is compared with, is not there."""
    here = [each for each in summaries if each["cell"] == name]
    base = next((each for each in here if is_base(each)), None)
    if base is None:
        return ""
    again = replicated(name, here)
    noise = f"smallest visible difference {visible(base, again):.3f}" if again else "noise not measured"
    header = f"**{CELLS[name].title}** (`{name}`; {base['seeds']} seeds; {noise})"
    common = [each for each in here if is_common(each)]
    lines = table(
        [c.format(level=base["level"]) for c in SUMMARY_COLUMNS], [row(each, base) for each in ordered(common)]
    )
    return "\n\n".join([header, lines, *learning_rates(here)])


def ordered(summaries: list[dict]) -> list[dict]:
    base = next(filter(is_base, summaries))
    return sorted(summaries, key=lambda each: (each is not base, -difference(each, base).mean()))


def visible(one: dict, other: dict) -> float:
    """The smallest difference that would be seen, by two runs that differ in their random numbers alone."""
    return interval(difference(one, other)).visible


def difference(one: dict, other: dict, name: str = "end") -> np.ndarray:
    count = min(len(one[name]), len(other[name]))
    return np.array(one[name][:count], float) - np.array(other[name][:count], float)


def row(each: dict, base: dict) -> list[str]:
    paired = difference(each, base)
    cells = [title(each["estimator"]), f"{np.mean(each['end']):.3f}"]
    cells += ["", ""] if each is base else [interval(paired).text(), f"{(paired > 0).sum()} of {len(paired)}"]
    cells += [ratio(each, base), mean(each["pass64_at"], 3), mean(each["entropy_at"], 2)]
    return [*cells, mean(each["pass64"], 3), mean(each["grad_norm"], 2), f"{np.mean(each['all_fail']):.0%}"]


def ratio(each: dict, base: dict) -> str:
    """Rollouts of all seeds together over GRPO's, of the seeds that reached the level."""
    pairs = [(a, b) for a, b in zip(each["rollouts_at"], base["rollouts_at"], strict=False) if a and b]
    if not pairs:
        return "never"
    mine, theirs = map(sum, zip(*pairs, strict=True))
    missed = each["rollouts_at"].count(None)
    return f"{mine / theirs:.2f}" + (f" ({missed} seeds never)" if missed else "")


def mean(numbers: list[float | None], digits: int) -> str:
    found = [x for x in numbers if x is not None]
    return f"{np.mean(found):.{digits}f}" if found else ""


def title(spec: str) -> str:
    name, options = parsed(spec)
    return ", ".join([registry.title(name), *(f"{k} {v}" for k, v in options.items())])


def learning_rates(here: list[dict]) -> list[str]:
    """The ends at each learning rate of the grid, and each estimator at its best; empty without a grid."""
    rates = sorted({each["lr"] for each in here})
    runs = {(each["estimator"], each["lr"]): each for each in here if each["replicate"] == 0}
    tried = [
        name for name in dict.fromkeys(e["estimator"] for e in ordered(here)) if all((name, r) in runs for r in rates)
    ]
    if len(rates) < 2 or BASE not in tried:
        return []
    best = {name: max((runs[name, rate] for rate in rates), key=lambda each: np.mean(each["end"])) for name in tried}
    rows = []
    for name in tried:
        ends = [f"{np.mean(runs[name, rate]['end']):.3f}" for rate in rates]
        shown = "" if name == BASE else interval(difference(best[name], best[BASE])).text()
        rows.append([title(name), *ends, f"{best[name]['lr']:g}", shown])
    columns = ["estimator", *(f"{rate:.2g}" for rate in rates), "best rate", "minus GRPO's, both at their best"]
    return ["Success at the end by learning rate:", table(columns, rows)]
