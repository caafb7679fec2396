"""report.json, from which a check resumes, and report.md, for people: both are rewritten after every part."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from gpu.modes import MODES
from gpu.parts import SPEED, Part
from gpu.work import ROOT, shell_command
from lab import tables
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json, write_text
from openrlhf_ebpo.run.run_log import timestamp

SCHEMA = 1
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
SOURCES = ("openrlhf_ebpo", "research", "tests/gpu")
REHEARSAL = "A rehearsal on a CPU, with the same commands: nothing here was measured on a GPU."


def commit() -> str:
    """For people; unknown without git, or outside a checkout."""
    words = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def source() -> str:
    """Fingerprint of the files that are run: it decides if a part that has passed still counts."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def begin(folder: Path, machine: dict, cpu: bool) -> dict:
    """The report in `folder`, to resume; a new one where there is none. A folder of other code, versions or machine is renamed.

    Raises:
        UsageError: the folder holds something else.
    """
    fresh = {
        "schema": SCHEMA,
        "kind": "rehearsal" if cpu else "gpu",
        "commit": commit(),
        "source": source(),
        "began": timestamp(),
        "machine": machine,
        "parts": {},
    }
    path = folder / "report.json"
    if not path.exists():
        return fresh
    try:
        found = json.loads(path.read_text())
        if identity(found) == identity(fresh):
            return found
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not a report of this check: name another folder, or remove it") from None
    old = folder.rename(folder.with_name(f"{folder.name}.{datetime.now():%Y%m%dT%H%M%S.%f}"))
    print(f"the report in {folder} is of another version or machine: it is now in {old}; all parts start again")
    return fresh


def identity(report: dict) -> tuple:
    machine = report["machine"]
    gpus = [gpu["name"] for gpu in machine["gpus"]]
    return report["schema"], report["kind"], report["source"], gpus, machine["versions"]


def write(folder: Path, report: dict, parts: Sequence[Part]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "report.json", report)
    write_text(folder / "report.md", markdown(report, parts))


def is_done(report: dict, name: str) -> bool:
    return report["parts"].get(name, {}).get("outcome") == PASSED


def left(report: dict, parts: Sequence[Part]) -> list[str]:
    return [part.name for part in parts if part.name not in report["parts"]]


def failed(report: dict) -> list[str]:
    return [name for name, part in report["parts"].items() if part["outcome"] == FAILED]


# Markdown


def markdown(report: dict, parts: Sequence[Part]) -> str:
    sections = (heading(report, parts), about(report), overview(report, parts), trained(report), timed(report))
    more = (failures(report), commands(report))
    return "\n\n".join(section for section in (*sections, *more) if section) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence]) -> str:
    return tables.table(head, [[cell(value) for value in row] for row in rows])


def cell(value) -> str:
    """One cell of Markdown, whatever a machine or a process has printed."""
    return " ".join(plain(value).replace("|", "\\|").replace("<", "&lt;").split())


def plain(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(map(plain, value))
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def heading(report: dict, parts: Sequence[Part]) -> str:
    counts = [part["outcome"] for part in report["parts"].values()]
    words = [f"{counts.count(outcome)} {outcome}" for outcome in (PASSED, FAILED, SKIPPED)]
    remaining = left(report, parts)
    verdict = ", ".join(words) + (f"; left: {', '.join(remaining)}" if remaining else "")
    rehearsal = f"\n\n**{REHEARSAL}**" if report["kind"] == "rehearsal" else ""
    return f"# Check on a GPU\n\n{verdict}.{rehearsal}"


def about(report: dict) -> str:
    rows = [*report["machine"].items(), ("commit", f"{report['commit']}, sources {report['source']}")]
    return "## Machine\n\n" + table(["", ""], [*rows, ("began", report["began"])])


def overview(report: dict, parts: Sequence[Part]) -> str:
    rows = []
    for part in parts:
        found = report["parts"].get(part.name, {})
        reason = (found.get("reason") or "").partition("\n")[0]
        rows.append((part.name, part.what, found.get("outcome", "left"), found.get("seconds"), part.limit, reason))
    return "## Parts\n\n" + table(["part", "what", "outcome", "seconds", "limit", "why"], rows)


def trained(report: dict) -> str:
    rows = []
    for name in MODES:
        if found := report["parts"].get(name, {}).get("facts"):
            rewards = " → ".join(map(plain, found["reward"]))
            counts = f"{len(found['steps'])}, resumed {found['resumed']} times"
            numbers = (
                found["seconds_a_step"],
                rewards,
                found["kl_per_step"],
                found["vllm_kl"],
                found["mismatch"],
                found["peak_mib"],
            )
            rows.append((name, found["placement"], counts, *numbers))
    head = [
        "training",
        "placement",
        "steps",
        "s a step",
        "reward",
        "KL a step",
        "largest vllm_kl",
        "mismatch",
        "peak MiB",
    ]
    return "## Trainings\n\n" + table(head, rows) if rows else ""


def timed(report: dict) -> str:
    """Of the last part that measured pairs: it has those of the others too."""
    parts = (part for name, part in report["parts"].items() if name.startswith(f"{SPEED}_") and is_done(report, name))
    found = max((part["facts"] for part in parts), key=lambda facts: len(facts["pairs"]), default=None)
    if found is None:
        return ""
    rows = [
        (n, *(pair[arm][key] for key in ("step", "peak_mib") for arm in ("off", "on")))
        for n, pair in enumerate(found["pairs"], 1)
    ]
    head = ["pair", "group_norm, s a step", "EBPO", "group_norm, peak MiB", "EBPO"]
    texts = [table(head, rows), f"Our own code in the trainer's process: {found['own']:.2%} of a step."]
    for name, title in (("overhead", "Seconds of a step"), ("memory", "Peak of memory")):
        if ratio := found[name]:
            mean, low, high = (f"{number:.3f}" for number in ratio)
            texts.append(f"{title}, EBPO / group_norm: {mean}, 95 % interval {low} to {high} ({len(rows)} pairs).")
    return "## EBPO against group_norm\n\n" + "\n\n".join(texts)


def failures(report: dict) -> str:
    texts = []
    for name, part in report["parts"].items():
        if part["outcome"] == FAILED:
            log = "\n".join(line.replace("```", "'''") for line in part["log"])
            texts.append(f"### {name}\n\n{cell(part['reason'])}\n\n```\n{log}\n```")
    return "\n\n".join(["## Failures", *texts]) if texts else ""


def commands(report: dict) -> str:
    lines = []
    for name, part in report["parts"].items():
        for each in part["commands"]:
            lines.append(f"# {name}: status {each['status']}, {each['seconds']} s\n{shell_command(each)}")
    return "## Commands\n\n```bash\n" + "\n".join(lines).replace("```", "'''") + "\n```" if lines else ""
