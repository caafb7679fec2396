"""research/gpu: which parts are run, what is kept, what comes into the report. The parts themselves: `--cpu`, by hand."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import seconds, wait_until

import overhead
from gpu import check, machine, modes, report, trainings, work
from gpu.parts import PAIRS, Part, outcomes, parts
from gpu.work import PartFailed, PartSkipped, TimeIsUp, Work
from lab import gpu_memory as memory
from lab import training
from lab.statistics import alternated, ratio
from openrlhf_ebpo.errors import ReportedError, UsageError

ROOT = Path(__file__).parents[2]
H100 = {"name": "H100 | <b>", "memory_mib": 81559, "driver": "580", "capability": "9.0"}
MACHINE = {
    "gpus": [H100],
    "visible": 1,
    "cores": 16,
    "memory_gib": 100.0,
    "processor": "x",
    "system": "Linux",
    "python": "3.12",
    "versions": {"torch": "2.11.0"},
    "set": "torch 2.11",
    "nvcc": "13.0",
}
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


def speed_facts(*pairs):
    found = overhead.summary(timings(*pairs))
    return json.loads(json.dumps({"pairs": timings(*pairs), **found}))


@pytest.fixture
def stubbed(monkeypatch, tmp_path):
    """Runs the command over parts that do what a test says: stubbed(words, **runs) -> exit status. No GPU, no commands."""
    monkeypatch.setattr(machine, "why_no_gpu", lambda: None)
    monkeypatch.setattr(machine, "described", lambda cpu: MACHINE)
    begun: list[str] = []

    def main(*words, **runs) -> int:
        def part(name, run):
            def noted(work):
                begun.append(name)
                return run(work)

            needs = () if name == "machine" else ("machine",)
            return Part(name, f"what {name} does", 60, 100, lambda work: [], noted, needs)

        table = {name: part(name, run) for name, run in runs.items()}
        monkeypatch.setattr(check, "parts", lambda: table)
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


def skipping(work):
    raise PartSkipped("two GPUs are needed")


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


def test_a_flag_that_is_none_is_left_out_and_true_stands_alone():
    assert training.command({"a": True, "b": None, "c": 0})[3:] == ["--a", "--c", "0"]


def test_attention_is_chosen_by_what_is_installed(monkeypatch, tmp_path):
    for there, expected in ((True, "flash_attention_2"), (False, "sdpa")):
        monkeypatch.setattr(training.importlib.util, "find_spec", lambda name, there=there: there or None)
        assert modes.flags_of("lora", tmp_path, tmp_path)["ds.attn_implementation"] == expected


# Time


def test_the_estimates_fit_into_fifteen_minutes_and_the_page_has_them():
    short = [part for part in parts().values() if not part.large]
    assert sum(part.seconds for part in short) <= 60 * check.MINUTES
    page = (ROOT / "docs" / "gpus.md").read_text()
    assert f"| all | | 17 | {sum(part.seconds for part in short)} s" in page
    for part in short:
        assert re.search(rf"`{part.name}`", page) or part.name == "speed_2", part.name
        assert f"| {part.limit} s" in page and part.seconds < part.limit
    assert f"{PAIRS} pairs".replace("3", "three") in page


def test_a_part_that_does_not_fit_is_left_and_a_later_call_goes_on(stubbed, monkeypatch):
    assert stubbed("--minutes", "0.5", machine=fine) == check.SOMETHING_IS_LEFT and stubbed.begun == []
    assert report.left(saved(stubbed), list(check.parts().values())) == ["machine"]
    assert stubbed(machine=fine) == 0 and stubbed.begun == ["machine"]


def test_what_the_time_cuts_off_is_left_and_not_failed(stubbed):
    def cut(work):
        raise TimeIsUp("--minutes are over")

    assert stubbed(machine=fine, async_=cut) == check.SOMETHING_IS_LEFT
    assert list(saved(stubbed)["parts"]) == ["machine"]


# What is kept


def test_a_failed_part_does_not_end_the_rest_and_is_run_again(stubbed, capsys):
    assert stubbed(machine=fine, a=failing, b=fine, c=skipping) == check.SOMETHING_FAILED
    outcomes_ = {name: part["outcome"] for name, part in saved(stubbed)["parts"].items()}
    assert outcomes_ == {"machine": "passed", "a": "failed", "b": "passed", "c": "skipped"}
    assert "failed: a;" in capsys.readouterr().out
    assert stubbed(machine=fine, a=fine, b=fine, c=skipping) == 0 and stubbed.begun == ["a", "c"]


def test_an_error_of_ours_fails_the_part_and_not_the_rest(stubbed):
    assert stubbed(machine=fine, a=lambda work: {}["x"], b=fine) == check.SOMETHING_FAILED
    assert saved(stubbed)["parts"]["a"]["reason"] == "KeyError: 'x'" and stubbed.begun[-1] == "b"


def test_without_what_it_needs_a_part_is_left_but_only_runs_it_all_the_same(stubbed, capsys):
    assert stubbed(machine=failing, a=fine) == check.SOMETHING_FAILED and stubbed.begun == ["machine"]
    assert "a: left, since machine has not passed" in capsys.readouterr().out
    stubbed("--only", "a", machine=failing, a=fine)
    assert stubbed.begun == ["a"] and saved(stubbed)["parts"]["a"]["outcome"] == "passed"


def test_only_runs_again_what_has_passed(stubbed):
    assert stubbed(machine=fine, a=fine) == 0
    assert stubbed("--only", "a", machine=fine, a=fine) == 0 and stubbed.begun == ["a"]
    assert set(saved(stubbed)["parts"]) == {"machine", "a"}


@pytest.mark.parametrize("what", ["source", "gpu", "versions", "kind"])
def test_another_version_or_machine_begins_anew_and_the_old_report_stays(stubbed, monkeypatch, what, capsys):
    assert stubbed(machine=fine) == 0
    words = ["--cpu"] if what == "kind" else []
    if what == "source":
        monkeypatch.setattr(report, "source", lambda: "another")
    if what in ("gpu", "versions"):
        change = {"gpus": [{**H100, "name": "H200"}]} if what == "gpu" else {"versions": {"torch": "2.13.0"}}
        monkeypatch.setattr(machine, "described", lambda cpu: {**MACHINE, **change})
    assert stubbed(*words, machine=fine) == 0 and stubbed.begun == ["machine"]
    (old,) = stubbed.folder.parent.glob("out.*")
    assert (old / "report.json").exists() and (old / "report.md").exists() and old.name in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}'])
def test_a_folder_with_another_report_json_is_refused_and_left_alone(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(UsageError, match=r"report\.json is not a report of this check"):
        report.begin(tmp_path, MACHINE, cpu=False)
    assert (tmp_path / "report.json").read_text() == text


def test_a_machine_without_a_gpu_is_told_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "why_no_gpu", lambda: "torch finds no GPU")
    with pytest.raises(SystemExit, match=r"no GPU can be used here: torch finds no GPU.*--cpu"):
        check.main([str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_a_dry_run_prints_every_command_and_writes_nothing(tmp_path, capsys):
    check.main([str(tmp_path / "out"), "--dry_run"])
    lines = capsys.readouterr().out.splitlines()
    assert not (tmp_path / "out").exists()
    assert sum("openrlhf_ebpo.cli.train_ppo_ray" in line for line in lines) == len(modes.MODES)
    assert sum("overhead.py" in line for line in lines) == PAIRS
    assert sum("openrlhf_ebpo.cli.verify" in line for line in lines) == len(modes.MODES)


def test_the_long_parts_are_asked_for_and_smaller_in_a_rehearsal(capsys, tmp_path):
    check.main([str(tmp_path), "--dry_run"])
    assert "--large" not in capsys.readouterr().out
    check.main([str(tmp_path), "--dry_run", "--large"])
    large = capsys.readouterr().out
    assert "overhead.py --large --pairs 2" in large and re.search(r"learning_smollm2.py .*--minutes 25", large)
    check.main([str(tmp_path), "--dry_run", "--large", "--cpu"])
    assert re.search(r"learning_smollm2.py .*--seeds 1 --tiny --output \S+smollm2", capsys.readouterr().out)


def test_each_pair_of_the_timing_adds_one_to_those_before_it(tmp_path):
    words = [parts()[f"speed_{n}"].plan(Work(f"speed_{n}", tmp_path, 1))[0] for n in (1, 2, 3)]
    assert [each[each.index("--pairs") + 1] for each in words] == ["1", "2", "3"]
    assert len({each[each.index("--output") + 1] for each in words}) == 1
    assert ["--force" in each for each in words] == [True, False, False]


@pytest.mark.parametrize(
    "words", [["--minutes", "0"], ["--minutes", "nan"], ["--minutes", "x"], ["--only", "everything"]]
)
def test_flags_that_cannot_be_meant_are_refused(words, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        check.main([str(tmp_path), *words])
    assert end.value.code == 2


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


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path, monkeypatch, cut_off):
    monkeypatch.setattr(work, "GRACE", 5)
    until = time.monotonic() + seconds(2) if cut_off else float("inf")
    each = Work("a", tmp_path, 60 if cut_off else 2, until=until)
    error, words = (
        (TimeIsUp, "--minutes")
        if cut_off
        else (PartFailed, r"not done after its limit of 2 s; the last line of a\.log: \d+")
    )
    with pytest.raises(error, match=words):
        each.run(HANGS)
    child = int(each.log.read_text().splitlines()[-1])
    assert each.commands[0]["status"] == -15
    wait_until(lambda: not is_alive(child), 10)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


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


# The machine


def test_each_set_of_versions_is_fine_by_itself():
    for name, wanted in machine.SETS.items():
        found = {part: version for part, version in wanted.items() if version}
        assert machine.nearest_set(found) == name
        assert [each for each in machine.version_findings(found) if each.remedy] == []
        local = {**found, "torch": found["torch"] + "+cu130"}
        assert machine.nearest_set(local) == name and not any(each.remedy for each in machine.version_findings(local))


def test_what_is_missing_is_fatal_and_another_version_is_not():
    found = {part: version for part, version in machine.SETS["pinned"].items() if part not in ("ray", "flash-attn")}
    findings = {each.found: each for each in machine.version_findings({**found, "vllm": "0.30.0"})}
    assert findings["ray is not installed"].fatal and "2.55.0 is needed" in findings["ray is not installed"].remedy
    assert not findings["vllm 0.30.0"].fatal and "has 0.29.0" in findings["vllm 0.30.0"].remedy
    assert (
        not findings["flash-attn is not installed"].fatal and "sdpa" in findings["flash-attn is not installed"].remedy
    )


def test_the_packages_of_the_check_are_named_with_a_line_to_type():
    (finding,) = machine.package_findings(["scipy", "reasoning_gym"])
    assert finding.fatal and finding.remedy == "pip install reasoning-gym==0.1.25 scipy"
    assert list(machine.package_findings([])) == []


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


# Numbers


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


JUNIT = """<testsuites><testsuite><testcase name="good"/><testcase name="off"><skipped message=""/></testcase>
<testcase name="bad"><failure message="">x</failure></testcase><testcase name="worse"><error message=""/></testcase></testsuite></testsuites>"""


def test_pytests_file_says_who_failed():
    assert outcomes(JUNIT) == {"passed": 1, "skipped": 1, "failed": ["bad", "worse"]}


# The report


def test_the_report_has_the_machine_every_part_the_numbers_and_every_command():
    state = {**report.begin(Path("/nowhere"), MACHINE, cpu=True), "commit": "abc"}
    command = {"command": ["python", "-m", "a b"], "environment": {"X": "1"}, "seconds": 1.5, "status": 0}
    passed = {"outcome": "passed", "reason": None, "seconds": 3.0, "commands": [command], "log": []}
    state["parts"] = {
        "colocate": {**passed, "facts": FACTS},
        "lora": {**passed, "outcome": "failed", "reason": "a | b\nc", "facts": None, "log": ["```", "<script>"]},
        "speed_1": {**passed, "facts": speed_facts((1.0, 1.1))},
        "speed_2": {**passed, "facts": speed_facts((1.0, 1.1), (1.0, 1.1))},
    }
    text = report.markdown(state, [part for part in parts().values() if not part.large])
    assert "3 passed, 1 failed, 0 skipped; left: machine, model, separate, async, tests, speed_3." in text
    assert (
        report.REHEARSAL in text
        and "name H100 \\| &lt;b>, memory_mib 81559" in text
        and "| commit | abc, sources " in text
    )
    assert (
        "| colocate | one GPU, shared | 20, resumed 1 times | 0.5 | 0.05 → 0.1 | 0.01 | 0.004 | mismatch/k3_kl 0.0001 | 1000 |"
        in text
    )
    assert "Seconds of a step, EBPO / group_norm: 1.100, 95 % interval 1.100 to 1.100 (2 pairs)." in text
    assert "### lora\n\na \\| b c\n\n```\n'''\n<script>\n```" in text
    assert "# colocate: status 0, 1.5 s\nX=1 python -m 'a b'" in text


def test_the_page_names_every_part_and_every_fact():
    page = (ROOT / "docs" / "gpus.md").read_text()
    shown = {
        "steps",
        "resumed",
        "seconds_a_step",
        "reward",
        "kl_per_step",
        "vllm_kl",
        "mismatch",
        "peak_mib",
        "placement",
    }
    assert shown <= FACTS.keys() and [name for name in shown if f"`{name}`" not in page] == []
    for name, wanted in machine.SETS.items():
        assert name.removeprefix("pinned") in page
        assert [version for version in wanted.values() if version and version not in page] == []


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
