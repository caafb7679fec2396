"""The parts of the check, in the order in which they are run; each can be run alone.

`seconds` are estimates for one H100-class GPU, of which nothing was measured: a start of the whole stack is taken as 40 s. `limit` is
when a part is ended.
"""

from __future__ import annotations

import functools
import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpu import machine, trainings
from gpu.modes import MODES
from gpu.work import ROOT, PartFailed, PartSkipped, Work

PAIRS = 3
MACHINE, MODEL, SPEED = "machine", "model", "speed"
PREPARE = """
import sys
from pathlib import Path
from openrlhf_ebpo.quickstart.stages import preparation, run_stages
run_stages(preparation(Path(sys.argv[1])))
"""
SMOLLM2 = ("learning_smollm2.py", "--responses", "128", "--steps", "20", "--groups", "2", "4", "--seeds")
LARGE = {  # script with its flags, the same for a rehearsal, seconds
    "share": (("overhead.py", "--large", "--pairs", "2"), ("overhead.py", "--pairs", "1", "--steps", "8"), 900),
    "smollm2": ((*SMOLLM2, *map(str, range(1, 11)), "--minutes", "25"), (*SMOLLM2, "1", "--tiny"), 1900),
}


@dataclass(frozen=True)
class Part:
    """Attributes:
    plan: the commands, for --dry_run.
    run: gives the facts for the report; raises PartFailed or PartSkipped.
    needs: parts that must have passed.
    """

    name: str
    what: str
    seconds: int
    limit: int
    plan: Callable[[Work], list[list[str]]]
    run: Callable[[Work], dict]
    needs: tuple[str, ...] = (MACHINE,)
    large: bool = False


def check_machine(work: Work) -> dict:
    """Raises PartFailed where something is missing without which nothing runs."""
    found = list(machine.findings(work.cpu))
    fatal = [f"{each.found}: {each.remedy}" for each in found if each.fatal]
    for each in found:
        print(f"  {each.found}" + (f"\n    -> {each.remedy}" if each.remedy else ""), flush=True)
    if fatal:
        raise PartFailed("\n".join(fatal))
    return {"findings": [{"found": each.found, "remedy": each.remedy} for each in found]}


def tests_plan(work: Work) -> list[list[str]]:
    words = ["-m", "pytest", "-m", "gpu", "-rs", "--durations=10", "-p", "no:cacheprovider", "tests/gpu", "--junitxml"]
    return [[sys.executable, *words, str(work.output / "tests.xml")]]


def run_tests(work: Work) -> dict:
    """Raises PartFailed with the names of the tests that failed; PartSkipped where all skip, as without a GPU."""
    work.output.mkdir(parents=True, exist_ok=True)
    work.run(tests_plan(work)[0], allowed=(0, 1))
    found = outcomes((work.output / "tests.xml").read_text())
    if found["failed"]:
        raise PartFailed(f"{len(found['failed'])} failed: {', '.join(found['failed'])}")
    if not found["passed"]:
        raise PartSkipped(f"all {found['skipped']} tests marked gpu skip: they need a GPU")
    return found


def outcomes(junit: str) -> dict:
    """Of pytest's own file: how many passed and skipped, and who failed."""
    cases = list(ElementTree.fromstring(junit).iter("testcase"))
    failed = [
        each.get("name", "?") for each in cases if each.find("failure") is not None or each.find("error") is not None
    ]
    skipped = sum(each.find("skipped") is not None for each in cases)
    return {"passed": len(cases) - len(failed) - skipped, "skipped": skipped, "failed": failed}


def model_plan(work: Work) -> list[list[str]]:
    return [[sys.executable, "-c", PREPARE, str(work.model)]]


def make_model(work: Work) -> dict:
    work.run(model_plan(work)[0], OMP_NUM_THREADS="1")
    return {"folder": str(work.model)}


def script_plan(work: Work, words: Sequence[str]) -> list[list[str]]:
    return [[sys.executable, str(ROOT / "research" / words[0]), *words[1:], "--output", str(work.output)]]


def speed_plan(work: Work, pairs: int) -> list[list[str]]:
    """One pair more than the part before has left in the folder that they share; the first begins it again."""
    steps, prompts = ("12", "16") if work.cpu else ("40", "64")
    words = ["overhead.py", "--steps", steps, "--prompts", prompts, "--pairs", str(pairs)]
    return script_plan(replace(work, part=SPEED), [*words, *(["--force"] if pairs == 1 else [])])


def run_speed(work: Work, pairs: int) -> dict:
    (words,) = speed_plan(work, pairs)
    work.run(words, RAY_ADDRESS="local")
    found = json.loads((replace(work, part=SPEED).output / "overhead.json").read_text())
    return {name: found[name] for name in ("pairs", "overhead", "memory", "own")}


def large_plan(work: Work, name: str) -> list[list[str]]:
    words, rehearsal, _ = LARGE[name]
    return script_plan(work, rehearsal if work.cpu else words)


def run_large(work: Work, name: str) -> dict:
    work.run(large_plan(work, name)[0], RAY_ADDRESS="local")
    return {"files": sorted(path.name for path in work.output.iterdir() if path.is_file())}


def mode_part(name: str) -> Part:
    mode = MODES[name]
    plan, run = functools.partial(trainings.plan, name=name), functools.partial(trainings.train, name=name)
    seconds, limit = (100, 300) if mode.killed else (55, 200)
    return Part(name, mode.what, seconds, limit, plan, run, (MACHINE, MODEL))


def speed_part(number: int) -> Part:
    plan, run = functools.partial(speed_plan, pairs=number), functools.partial(run_speed, pairs=number)
    what = f"EBPO against group_norm, pair {number}: seconds of a step, GPU memory"
    return Part(f"{SPEED}_{number}", what, 85, 300, plan, run)


def large_part(name: str) -> Part:
    words, _, seconds = LARGE[name]
    plan, run = functools.partial(large_plan, name=name), functools.partial(run_large, name=name)
    return Part(name, f"research/{' '.join(words)}", seconds, 2 * seconds, plan, run, large=True)


def parts() -> dict[str, Part]:
    every = [
        Part(MACHINE, "versions, GPU, compiler, libraries, memory, disk", 30, 400, lambda work: [], check_machine, ()),
        Part(MODEL, "the quickstart's tasks, model and warm start", 60, 400, model_plan, make_model),
        *(mode_part(name) for name in ("colocate", "separate", "async", "lora")),
        Part("tests", "the tests marked gpu", 170, 500, tests_plan, run_tests),
        *(speed_part(number) for number in range(1, PAIRS + 1)),
        *(large_part(name) for name in LARGE),
    ]
    return {each.name: each for each in every}
