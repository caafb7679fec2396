"""report.json, which a repeated check resumes, and report.md, for people: both are rewritten after every part."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpu.modes import MODES
from gpu.work import ROOT, shell_command
from lab import markdown_tables
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json, write_text
from openrlhf_ebpo.run.run_log import timestamp, versions
from openrlhf_ebpo.train.machine import gpus

PASSED, FAILED = "passed", "failed"
GPU, REHEARSAL = "gpu", "rehearsal"
REHEARSED = "A rehearsal on a CPU, with the same commands: nothing here was measured on a GPU."
TRAINING_COLUMNS = (
    *("training", "placement", "steps", "s a step", "reward"),
    *("KL a step", "largest vllm_kl", "mismatch", "peak MiB"),
)


def begin(folder: Path, cpu: bool) -> dict:
    """Return the report in `folder`, to resume; a new one if it is missing.

    Raises:
        UsageError: its report.json is something else, or is of the other kind.
    """
    path, kind = folder / "report.json", REHEARSAL if cpu else GPU
    fresh = {"kind": kind, "began": timestamp(), "machine": machine(cpu), "parts": {}}
    if not path.exists():
        return fresh
    try:
        found = json.loads(path.read_text())
        if found["kind"] != kind or not isinstance(found["parts"], dict):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not a report of this kind of check: name another REPORT_DIR") from None
    return found | {"machine": fresh["machine"]}


def machine(cpu: bool) -> dict:
    return {
        "gpus": [] if cpu else gpus(),
        "visible": 1 if cpu else visible(),
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions(),
    }


def visible() -> int:
    """Count the GPUs that CUDA_VISIBLE_DEVICES leaves."""
    import torch

    return torch.cuda.device_count()


def commit() -> str:
    """Return "unknown" without git, or outside a checkout."""
    words = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def write(folder: Path, report: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "report.json", report)
    write_text(folder / "report.md", markdown(report))


# Markdown


def markdown(report: dict) -> str:
    parts = report["parts"]
    counts = [part["outcome"] for part in parts.values()]
    head = f"# Check on a GPU\n\n{counts.count(PASSED)} passed, {counts.count(FAILED)} failed."
    machine = table(["", ""], [*report["machine"].items(), ("began", report["began"])])
    sections = [head, *([f"**{REHEARSED}**"] if report["kind"] == REHEARSAL else []), f"## Machine\n\n{machine}"]
    rows = [
        (name, part["outcome"], part["seconds"], part["commit"], (part["reason"] or "").partition("\n")[0])
        for name, part in parts.items()
    ]
    sections.append("## Parts\n\n" + table(["part", "outcome", "seconds", "commit", "why"], rows))
    facts = {name: part["facts"] for name, part in parts.items() if part["facts"]}
    if trained := [training(name, facts[name]) for name in MODES if name in facts]:
        sections.append("## Trainings\n\n" + table(TRAINING_COLUMNS, trained))
    if tests := facts.get("tests"):
        sections.append(f"## Tests\n\n{cell(tests['summary'])}")
    if speed := facts.get("speed"):
        sections.append(f"## EBPO (on) against group_norm (off)\n\n{speed['table'].strip()}")
    for name, part in parts.items():
        if part["outcome"] == FAILED:
            sections.append(f"## {name} failed\n\n{cell(part['reason'])}\n\n{fenced(part['log'])}")
    commands = [
        f"# {name}: status {each['status']}, {each['seconds']} s\n{shell_command(each)}"
        for name, part in parts.items()
        for each in part["commands"]
    ]
    return "\n\n".join([*sections, "## Commands", fenced(commands)]) + "\n"


def training(name: str, facts: dict) -> tuple:
    steps = f"{len(facts['steps'])}, resumed {facts['resumed']} times"
    rewards = " → ".join(map(plain, facts["reward"]))
    own = [facts[key] for key in ("kl_per_step", "vllm_kl", "mismatch", "peak_mib")]
    return (name, facts["placement"], steps, facts["seconds_a_step"], rewards, *own)


def fenced(lines: Sequence[str]) -> str:
    return "```\n" + "\n".join(lines).replace("```", "'''") + "\n```"


def table(head: Sequence[str], rows: Sequence[Sequence]) -> str:
    return markdown_tables.table(head, [[cell(value) for value in row] for row in rows])


def cell(value) -> str:
    """Return one cell of Markdown, whatever a machine or a process has printed."""
    return " ".join(plain(value).replace("|", "\\|").replace("<", "&lt;").split())


def plain(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(map(plain, value))
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
