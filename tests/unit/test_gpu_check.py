"""Guards scripts/gpu_check.sh: which parts run, what is kept and reported, when a part fails; and the timing of overhead.py."""

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import wait_until, wait_until_gone

import gpu_check as check
import overhead
from gpu import modes, report, trainings, work
from gpu.work import PartFailed, Work
from gpu_check import PARTS, Part
from lab import gpu_memory as memory
from lab import training
from lab.statistics import alternated, ratio
from openrlhf_ebpo.errors import ReportedError, UsageError

ROOT = Path(__file__).parents[2]
MACHINE = {"gpus": [{"name": "H100 | <b>", "memory_mib": 81559}], "visible": 1, "versions": {"torch": "2.11.0"}}
FACTS = {
    "status": "complete",
    "steps": list(range(1, 21)),
    "resumed": 1,
    "seconds_a_step": 0.5,
    "reward": [0.05, 0.1],
    "kl_per_step": 0.01,
    "vllm_kl": 0.004,
    "mismatch": {"mismatch/k3_kl": 1e-4},
    "stale_in_a_row": 1,
    "rows_of_the_cpu_backend": 0,
    "peak_mib": 1000,
    "placement": "one GPU, shared",
    "versions": {},
}


def timings(*pairs):
    """What overhead.py keeps of pairs of (off, on) seconds a step."""
    shared = {"first step": 20.0, "run_log": 0.01, "peak_mib": 1000}
    return [{arm: {"step": s, **shared} for arm, s in zip(overhead.ARMS, pair, strict=True)} for pair in pairs]


@pytest.fixture
def stubbed(monkeypatch, tmp_path):
    """Runs the command over parts that do what a test says: stubbed(words, **runs) -> exit status. No GPU, no commands."""
    monkeypatch.setattr(check, "no_gpu", lambda: None)
    monkeypatch.setattr(report, "machine", lambda cpu: MACHINE)
    begun: list[str] = []

    def main(*words, **runs):
        def noted(work):
            begun.append(work.part)
            return runs[work.part](work)

        monkeypatch.setattr(check, "PARTS", {name: Part(f"what {name} does", 60, 100, noted) for name in runs})
        begun.clear()
        try:
            check.main([str(tmp_path / "out"), *words])
        except SystemExit as end:
            return end.code
        return 0

    main.begun, main.folder = begun, tmp_path / "out"
    return main


def fine(work):
    return {"number": 1}


def failing(work):
    raise PartFailed("it does not hold")


def saved(stubbed):
    return json.loads((stubbed.folder / "report.json").read_text())


# Flags of the trainings


@pytest.mark.parametrize("name", modes.MODES)
def test_every_mode_trains_twenty_steps_from_the_warm_start_and_resumes(name, tmp_path):
    flags = modes.flags_of(name, tmp_path, tmp_path / "arm")
    assert flags["actor.model_name_or_path"] == tmp_path / "warm_start" and flags["advantage_estimator"] == "ebpo"
    assert flags["data.max_samples"] == modes.STEPS * 128 and flags["ckpt.load_enable"] is True
    assert modes.SAVE_EVERY < modes.KILL_AFTER < 2 * modes.SAVE_EVERY


def test_the_modes_have_what_is_to_be_proven(tmp_path):
    flags = {name: modes.flags_of(name, tmp_path, tmp_path) for name in modes.MODES}
    shared = {name: bool(each["train.colocate_all"]) for name, each in flags.items()}
    assert shared == {"separate": False, "colocate": True, "async": False, "lora": True}
    assert {each["ds.zero_stage"] for each in flags.values()} == {2, 3}
    assert flags["colocate"]["vllm.enable_sleep"] and flags["colocate"]["ds.enable_sleep"]
    assert flags["async"]["train.async_enable"] and flags["lora"]["ds.lora.rank"]


def test_none_omits_a_flag_and_true_gives_it_without_a_value():
    assert training.command({"a": True, "b": None, "c": 0})[3:] == ["--a", "--c", "0"]


# The parts


def test_the_estimates_fit_into_fifteen_minutes_and_the_page_has_them():
    total = sum(part.seconds for part in PARTS.values())
    page = (ROOT / "docs" / "gpus.md").read_text()
    assert total <= 15 * 60 and f"| all | | {total} s |" in page
    for name, part in PARTS.items():
        assert re.search(rf"\| `{name}` \|.*\| {part.seconds} s \| {part.limit} s \|", page), name
        assert part.seconds < part.limit


def test_a_failed_part_does_not_end_the_rest_and_is_run_again(stubbed):
    assert stubbed(machine=fine, a=failing, b=lambda work: {}["x"], c=fine).startswith("failed: a, b; logs: ")
    parts = saved(stubbed)["parts"]
    outcomes = {name: part["outcome"] for name, part in parts.items()}
    assert outcomes == {"machine": "passed", "a": "failed", "b": "failed", "c": "passed"}
    assert parts["a"]["reason"] == "it does not hold" and parts["b"]["reason"] == "KeyError: 'x'"
    assert stubbed(machine=fine, a=fine, b=fine, c=fine) == 0 and stubbed.begun == ["a", "b"]


def test_nothing_is_tried_on_a_machine_that_lacks_something_unless_named(stubbed):
    assert stubbed(machine=failing, a=fine).startswith("failed: machine;") and stubbed.begun == ["machine"]
    stubbed("--only", "a", machine=failing, a=fine)
    assert stubbed.begun == ["a"] and saved(stubbed)["parts"]["a"]["outcome"] == "passed"


def test_only_repeats_a_part_that_has_passed_and_keeps_the_others(stubbed):
    assert stubbed(machine=fine, a=fine) == 0
    assert stubbed("--only", "a", machine=fine, a=fine) == 0 and stubbed.begun == ["a"]
    assert set(saved(stubbed)["parts"]) == {"machine", "a"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"kind": "rehearsal", "parts": {}}'])
def test_a_folder_with_another_report_json_is_refused_and_left_alone(tmp_path, text, monkeypatch):
    monkeypatch.setattr(report, "machine", lambda cpu: MACHINE)
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(UsageError, match=r"report\.json is not a report of this kind of check"):
        report.begin(tmp_path, cpu=False)
    assert (tmp_path / "report.json").read_text() == text


@pytest.mark.parametrize(
    ("cause", "missing", "words"),
    [
        ("torch finds no GPU", [], "no GPU can be used here: torch finds no GPU.*--cpu"),
        (None, ["scipy", "reasoning_gym"], "not installed: pip install reasoning-gym scipy"),
    ],
)
def test_a_machine_without_a_gpu_or_a_package_is_told_what_to_do(cause, missing, words, monkeypatch, tmp_path):
    monkeypatch.setattr(check, "no_gpu", lambda: cause)
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: None if name in missing else name)
    with pytest.raises(SystemExit, match=words):
        check.main([str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_an_unknown_part_is_refused(tmp_path):
    with pytest.raises(SystemExit) as end:
        check.main([str(tmp_path), "--only", "everything"])
    assert end.value.code == 2


def test_tests_that_all_skip_count_in_a_rehearsal_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(Work, "run", lambda work, words: None)
    for cpu in (True, False):
        each = Work("tests", tmp_path, 60, cpu)
        each.log.parent.mkdir(exist_ok=True)
        each.log.write_text("==== 5 skipped in 0.1s ====\n")
        if cpu:
            assert check.run_tests(each) == {"summary": "==== 5 skipped in 0.1s ===="}
    with pytest.raises(PartFailed, match=r"no test has run: .*5 skipped"):
        check.run_tests(each)


# Commands


def test_a_command_is_recorded_with_its_status_and_time(tmp_path):
    each = Work("a", tmp_path, 60)
    each.run([sys.executable, "-c", "import os; print(os.environ['COLOUR'])"], COLOUR="red")
    assert each.commands[0]["status"] == 0 and each.commands[0]["seconds"] >= 0
    assert each.log.read_text().splitlines()[-1] == "red" and each.log.read_text().startswith("$ COLOUR=red ")


def test_a_command_that_fails_names_itself(tmp_path):
    with pytest.raises(PartFailed, match=r"exit status 3: .* -c 'raise SystemExit\(3\)'"):
        Work("a", tmp_path, 60).run([sys.executable, "-c", "raise SystemExit(3)"])


HANGS = [
    sys.executable,
    "-c",
    "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()",
]


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "GRACE", 5)
    each = Work("a", tmp_path, 2)
    with pytest.raises(PartFailed, match="not done after its limit of 2 s"):
        each.run(HANGS)
    child = int(each.log.read_text().splitlines()[-1])
    assert each.commands[0]["status"] == -15
    wait_until_gone([child])


def test_the_end_of_a_log_comes_without_control_characters_and_secrets(tmp_path):
    secret = "hf_" + "a" * 34
    (tmp_path / "log").write_text(f"first\n\x1b[31mred\x1b[0m\x07\n50 %\r100 %\ntoken {secret}\n" + "x" * 5000 + "\n")
    lines = work.tail(tmp_path / "log", 5)
    assert lines[:3] == ["red", "50 %", "100 %"] and secret not in "".join(lines) and len(lines[-1]) == 400
    assert work.tail(tmp_path / "nothing") == []


# What a training must show


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "failed"}, "the run is failed"),
        ({"steps": [1, 2, 2, 3]}, r"with steps \[1, 2, 2, 3\]"),
        ({"resumed": 0}, "knows of no resume"),
        ({"kl_per_step": 0.0}, "the policy does not change"),
        ({"kl_per_step": None}, "the policy does not change"),
        ({"vllm_kl": None}, "vllm_kl is missing"),
        ({"vllm_kl": -0.2}, r"vllm_kl reaches -0\.2, beyond 0\.05"),
        ({"vllm_kl": float("nan")}, "vllm_kl reaches nan"),
        ({"stale_in_a_row": 2}, "mismatch/stale is set in 2 steps in a row"),
        ({"rows_of_the_cpu_backend": 3}, "3 replacements of the CPU backend"),
    ],
)
def test_what_does_not_hold_is_said(change, words):
    mode = modes.MODES["colocate"]
    assert trainings.problems(FACTS, mode, cpu=False) == []
    (problem,) = trainings.problems({**FACTS, **change}, mode, cpu=False)
    assert re.search(words, problem)


def test_old_weights_are_allowed_to_differ_where_generation_runs_ahead_and_the_backend_in_a_rehearsal():
    assert trainings.problems({**FACTS, "vllm_kl": -0.2}, modes.MODES["async"], cpu=False) == []
    assert trainings.problems({**FACTS, "rows_of_the_cpu_backend": 3}, modes.MODES["async"], cpu=True) == []


def test_the_largest_is_by_magnitude_and_nan_is_larger_than_any():
    rows = [{"x": 0.1}, {}, {"x": -0.3}, {"x": None}]
    assert trainings.largest(rows, "x") == -0.3 and trainings.largest(rows, "y") is None
    assert math.isnan(trainings.largest([{"x": float("nan")}, *rows], "x"))


def test_of_the_mismatch_the_worst_step_is_told():
    rows = [{"mismatch/ess": 0.9, "mismatch/k3_kl": 1e-4, "x": 1}, {"mismatch/ess": 0.8, "mismatch/k3_kl": None}]
    assert trainings.mismatch(rows) == {"mismatch/ess": 0.8, "mismatch/k3_kl": 1e-4} and trainings.mismatch([]) == {}


@pytest.mark.parametrize(
    ("stale", "in_a_row"),
    [([], 0), ([0, 0], 0), ([1, 0, 1, None, 0], 1), ([0, 1, None, 1, 0, 1], 2), ([0, 1, 1, 1], 3)],
)
def test_stale_steps_are_counted_in_a_row(stale, in_a_row):
    assert trainings.stale_in_a_row([{"mismatch/stale": value} for value in stale]) == in_a_row


def test_the_gap_of_a_resume_is_not_the_time_of_a_step():
    rows = [{"time": t} for t in (0, 9, 9.5, 10, 10.5, 11, 60, 61, 62, 63)]
    assert trainings.step_seconds(rows) == 1
    assert trainings.step_seconds(rows[:3]) is None


def test_a_training_that_is_done_before_the_kill_fails(tmp_path):
    each = Work("a", tmp_path, 60)
    with pytest.raises(PartFailed, match="ended with status 0 before it could be killed"):
        trainings.kill_midway(each, [sys.executable, "-c", ""], tmp_path / "run", {})


@pytest.mark.parametrize(("gpus", "words"), [(1, "two Ray nodes: weights over a socket"), (2, "a GPU each")])
def test_the_report_says_how_many_gpus_there_were(gpus, words, tmp_path):
    assert trainings.placement(Work("separate", tmp_path, 1, gpus=gpus), modes.MODES["separate"]).endswith(words)
    assert trainings.placement(Work("lora", tmp_path, 1, gpus=gpus), modes.MODES["lora"]) == "one GPU, shared"


# Memory and numbers


def test_memory_that_nvidia_smi_does_not_know_is_not_counted():
    assert memory.total("100\n200\n") == 300 and memory.total("[N/A]\n") is None


def test_memory_without_a_gpu_is_unknown_and_nothing_waits(monkeypatch):
    monkeypatch.setattr(memory, "used_mib", lambda: None)
    with memory.peak() as found:
        pass
    assert found == {"peak_mib": None}


def test_the_peak_is_the_largest_that_was_seen(monkeypatch):
    seen = iter([5, 9, 7])
    monkeypatch.setattr(memory, "EVERY", 0.001)
    monkeypatch.setattr(memory, "used_mib", lambda: next(seen, None))
    with memory.peak() as found:
        wait_until(lambda: next(seen, None) is None, 10)
    assert found["peak_mib"] in (5, 7, 9)


def test_the_ratio_of_pairs_is_the_geometric_mean_with_its_interval():
    found = ratio([0.5, 2.0])
    assert found.mean == pytest.approx(1) and found.low < 0.5 and found.high > 2
    assert ratio([1.1, 1.1, 1.1])[:] == pytest.approx((1.1, 1.1, 1.1))
    with pytest.raises(ValueError, match="two values or more, and there are 1"):
        ratio([1.0])
    assert alternated(["a", "b"], 0) == ["a", "b"] and alternated(["a", "b"], 1) == ["b", "a"]


def test_pairs_are_compared_and_one_alone_has_no_interval():
    found = overhead.summary(timings((1.0, 1.1), (2.0, 2.2)))
    assert found["overhead"].mean == pytest.approx(1.1) and found["memory"].mean == pytest.approx(1)
    assert found["own"] == pytest.approx((0.01 / 1.1 + 0.01 / 2.2) / 2)
    alone = overhead.summary(timings((1.0, 1.1)))
    assert alone["overhead"] is None and overhead.report(timings((1.0, 1.1)), alone).endswith("overhead 1.100")


def test_the_table_of_phases_and_the_verdict_on_our_own_code():
    pairs = timings((1.0, 1.1), (2.0, 2.2))
    text = overhead.report(pairs, overhead.summary(pairs))
    assert "| step | 1500.0 | 1650.0 | +150.0 |" in text and "| run_log | 10.0 | 10.0 | +0.0 |" in text
    assert "0.68% of a step, under 1%" in text and "first step 20.0 s" in text and text.endswith("\noverhead 1.100")
    pairs[0]["on"]["advantages"] = 0.1
    assert "NOT under 1%" in overhead.report(pairs, overhead.summary(pairs))


def test_steps_are_timed_after_the_warm_up_and_too_few_are_refused():
    rows = [{"time": 100.0 + 9 * n, "phase/training": 5.0} for n in range(6)]
    rows += [{"time": 146.0 + n, "phase/training": 0.5, "phase/saving": 1.0} for n in range(3)]
    found = overhead.times(rows, started=80.0)
    assert found == {"first step": 20.0, "step": 1.0, "training": 0.5, "saving": 1.0}
    with pytest.raises(ReportedError, match="6 steps were logged, too few to time"):
        overhead.times(rows[:6], 80.0)


def test_an_interrupted_pair_restarts_and_both_arms_do_the_same_but_for_what_is_ours(tmp_path, monkeypatch):
    def train(command, flags, log):
        assert sorted(path.name for path in log.parent.iterdir()) == []
        calls.append(flags)
        rows = ({"step": n, "time": time.time() + n} for n in range(1, 9))
        (log.parent / "run").mkdir()
        (log.parent / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    calls = []
    monkeypatch.setattr(overhead, "launch", train)
    (tmp_path / "pair-1-off" / "run").mkdir(parents=True)
    job = overhead.Pair(steps=8, prompts=4, samples=2, tokens=8)
    record = job.one(0, tmp_path)
    assert [record[arm]["step"] for arm in overhead.ARMS] == pytest.approx([1, 1], abs=1e-3)
    off, on = calls
    assert {name for name in off | on if off.get(name) != on.get(name)} == {
        *("advantage_estimator", "logger.rollouts_every", "logger.no_policy_metrics"),
        *("ckpt.path", "ckpt.output_dir", "logger.run_dir"),
    }
    assert off["actor.adam.lr"] == 0


def test_the_large_model_has_half_a_billion_weights_and_a_word_for_every_character(tmp_path, monkeypatch):
    sizes = {}
    monkeypatch.setattr(
        training.tiny_model, "build", lambda directory, texts, **found: sizes.update(found, texts=texts)
    )
    training.prepare(tmp_path, 2, 4, large=True)
    words = len(set(sizes.pop("texts"))) + 3
    assert words == training.WORDS
    attention = (
        sizes["hidden_size"] * sizes["head_dim"] * 2 * (sizes["num_attention_heads"] + sizes["num_key_value_heads"])
    )
    weights = sizes["num_hidden_layers"] * (attention + 3 * sizes["hidden_size"] * sizes["intermediate_size"])
    assert weights + words * sizes["hidden_size"] == pytest.approx(0.5e9, rel=0.01)
    prompts = [json.loads(line)["prompt"] for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert len(prompts) == 8 and {len(prompt) for prompt in prompts} == {training.LARGE_PROMPT}


# The report


def test_the_report_has_the_machine_every_part_the_numbers_and_every_command():
    command = {"command": ["python", "-m", "a b"], "environment": {"X": "1"}, "seconds": 1.5, "status": 0}
    passed = {"outcome": "passed", "reason": None, "seconds": 3.0, "commands": [command], "log": [], "commit": "abc"}
    parts = {
        "colocate": {**passed, "facts": FACTS},
        "lora": {**passed, "outcome": "failed", "reason": "a | b\nc", "facts": None, "log": ["```", "<script>"]},
        "tests": {**passed, "facts": {"summary": "5 passed in 3 s"}},
        "speed": {**passed, "facts": {"table": "overhead 1.100\n"}},
    }
    text = report.markdown({"kind": "rehearsal", "began": "now", "machine": MACHINE, "parts": parts})
    assert "3 passed, 1 failed." in text and report.REHEARSED in text
    assert "name H100 \\| &lt;b>, memory_mib 81559" in text and "| colocate | passed | 3 | abc |  |" in text
    assert (
        "| colocate | one GPU, shared | 20, resumed 1 times | 0.5 | 0.05 → 0.1 | 0.01 | 0.004 | mismatch/k3_kl 0.0001 | 1000 |"
        in text
    )
    assert "\n5 passed in 3 s\n" in text and "\noverhead 1.100\n" in text
    assert "## lora failed\n\na \\| b c\n\n```\n'''\n<script>\n```" in text
    assert "# colocate: status 0, 1.5 s\nX=1 python -m 'a b'" in text


# The CPU backend


def test_the_guard_keeps_the_cpu_backend_out_of_a_process(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests" / "gpu" / "guard"),
        "OPENRLHF_EBPO_GUARD": str(tmp_path / "seen"),
    }
    words = [sys.executable, "-c", "import openrlhf_ebpo.seams.rows; import openrlhf_ebpo.seams.cpu"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert "ImportError: openrlhf_ebpo.seams.cpu was asked for" in done.stderr
    assert len((tmp_path / "seen").read_text().split()) == 1


INACTIVE = """
import sys
from openrlhf_ebpo.seams.install import all_seams, install
from openrlhf_ebpo.seams.rows import SEAMS
from openrlhf_ebpo.seams.stack import is_cpu_stack
assert sys.argv[1:] == [] or not is_cpu_stack()
install()
print(all_seams() == SEAMS, [name for name in sys.modules if name.startswith("openrlhf_ebpo.seams.cpu")])
"""


def test_beside_a_torch_that_is_built_for_cuda_no_row_of_the_cpu_backend_is_taken(tmp_path):
    """A torch of which there is only the version file, by which the decision is made, and the names that annotations need."""
    for name, text in {
        "__init__.py": "",
        "version.py": "cuda = '13.0'\nhip = None\n",
        "nn/__init__.py": "",
        "nn/functional.py": "",
    }.items():
        (tmp_path / "torch" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "torch" / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'tests' / 'gpu' / 'guard'}"}
    words = [sys.executable, "-c", INACTIVE, "cuda"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split("\n")[0] == "True []", done.stderr[-2000:]
