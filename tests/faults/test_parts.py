"""The parts of the fault harness: what it finds wrong, which processes it means, what its table says."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from fractions import Fraction
from types import SimpleNamespace

import campaign
import ending
import kinds
import pyarrow as pa
import pytest
import table
import workshop
from disk import Disk
from moment import Moment, at_random
from patience import seconds

from openrlhf_ebpo.estimator.prior import Moments
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.run_log import RunDirectoryError, close_run, open_run, read_run


def rollouts(rewards: list[list[float]], valid: bool = True) -> pa.Table:
    rows = [{"group": g, "reward": r, "valid": valid} for g, group in enumerate(rewards) for r in group]
    return pa.Table.from_pylist(rows)


def moments(values) -> dict:
    found = Moments.of(values)
    return {"count": found.count, "mean": found.mean, "m2": found.m2}


def test_the_prior_is_held_against_exact_rationals():
    steps = [[[0.0, 1.0], [1.0, 1.0]], [[0.1, 0.7], [0.0, 0.3]]]
    values = [r for step in steps for group in step for r in group]
    means = [sum(map(Fraction, group)) / 2 for step in steps for group in step]
    stored = {"rewards": moments(values), "group_means": moments([float(mean) for mean in means])}
    tables = [rollouts(step) for step in steps]
    assert ending.prior_error(tables, stored) < 1e-15
    stored["rewards"]["m2"] += 1e-9
    assert 1e-10 < ending.prior_error(tables, stored) < 2e-9
    assert ending.prior_error([*tables, rollouts([[1.0, 1.0]], valid=False)], stored) < 2e-9, "left out"
    assert ending.prior_error(tables[:1], stored) > 0.5, "a step that is missing"


def test_prompts_are_counted_by_episode():
    episode = [["a", "a", "b", "b"], ["c", "c", "d", "d"]]
    assert ending.prompts([*episode, *reversed(episode)], 2) == (0, 0)
    assert ending.prompts([*episode, ["a", "a", "b", "b"]], 2) == (0, 0), "an episode that is not over lacks nothing"
    assert ending.prompts([episode[0], episode[0], *episode], 2) == (2, 2)
    assert ending.prompts([episode[0], [], *episode], 2) == (2, 0)


GOOD = {
    "steps_in_order": True,
    "wrong_step_column": 0,
    "prior_error": 1e-16,
    "checkpoint_prior_is_the_same": True,
    "state_prior_is_the_same": True,
    "skipped": 0,
    "doubled": 0,
    "unlisted_checkpoints": [],
    "damaged_checkpoints": [],
    "status": "complete",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("skipped", 1),
        ("prior_error", 1e-11),
        ("prior_error", float("nan")),
        ("status", "running"),
        ("steps_in_order", False),
    ],
)
def test_what_is_wrong_is_named(name, value):
    assert ending.problems(GOOD) == []
    (problem,) = ending.problems({**GOOD, name: value})
    assert problem.startswith(f"{name}: ")


def test_checkpoints_and_their_list_are_compared(tmp_path):
    run_dir, ckpt = tmp_path / "run", tmp_path / "ckpt"
    run_dir.mkdir()
    for step in (2, 3):
        (ckpt / "_actor" / f"global_step{step}").mkdir(parents=True)
        (ckpt / "_actor" / f"global_step{step}" / "a.pt").write_text("x")
        manifest.complete(ckpt / "_actor" / f"global_step{step}")

    def listed(*steps):
        rows = [json.dumps({"step": s, "checkpoint": f"{ckpt}/_actor/global_step{s}"}) + "\n" for s in steps]
        (run_dir / "checkpoints.jsonl").write_text("".join(rows))
        return ending.unlisted(run_dir, ckpt)

    assert listed(1, 2, 3) == []
    assert listed(1, 2) == ["global_step3 is not listed"]
    assert listed(2, 3, 3) == ["global_step3 is listed twice"]
    assert listed(2, 3, 4) == ["global_step4 is listed and not there"]


@pytest.mark.parametrize(
    ("text", "moment"),
    [("saving:2+0.1", Moment("saving", 2, 0.1)), ("step", Moment("step")), ("start+12", Moment("start", None, 12.0))],
)
def test_moments_are_written_as_words(text, moment):
    assert Moment.parse(text) == moment == Moment.parse(str(moment))


def test_random_moments_can_be_parsed():
    found = [at_random(random.Random(seed)) for seed in range(50)]
    assert {each.when for each in found} == {"start", "step", "saving"}
    assert all(Moment.parse(str(each)).when == each.when for each in found)


class Process(SimpleNamespace):
    def cmdline(self):
        return self.words.split()


def test_processes_are_known_by_what_they_call_themselves():
    train = "python -m openrlhf_ebpo.cli.train_ppo_ray --ckpt.path x"
    tree = [
        Process(
            pid=10,
            words="python /x/openrlhf_ebpo/supervisor/__main__.py 5 11 -m openrlhf_ebpo.cli.train_ppo_ray --ckpt.path x",
        ),
        Process(pid=11, words=train),
        Process(pid=12, words="/x/raylet/raylet --socket"),
        Process(pid=13, words="/x/gcs/gcs_server --log_dir"),
        Process(pid=14, words="ray::EBPOTrainer"),
        Process(pid=15, words="ray::PolicyWithPrior.fit"),
        Process(pid=16, words="ray::CPURolloutActor.__init__"),
        Process(pid=17, words="VLLM::EngineCore"),
        Process(pid=18, words="ray::IDLE"),
        Process(pid=19, words="ray::GenerateSamplesActor.fit"),
        Process(pid=20, words="python -m openrlhf_ebpo.hub.pusher run 11 60"),
        Process(pid=22, words="ray::PPOTrainerAsync.fit"),
        Process(pid=21, words="python /x/openrlhf_ebpo/rewards/worker.py"),
    ]
    pids = {kind: [process.pid for process in kinds.of_kind(kind, tree)] for kind in kinds.KINDS}
    assert pids == {
        "driver": [11],
        "supervisor": [10],
        "controller": [22],
        "trainer": [14],
        "policy": [15],
        "rollout": [16],
        "engine": [17],
        "generator": [19],
        "raylet": [12],
        "gcs": [13],
        "reward": [21],
        "pusher": [20],
    }
    assert kinds.kind_of(tree[8]) == "ray::IDLE"


def test_orphans_stay_descendants_and_are_known_by_their_environment():
    code = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
import kinds
kinds.become_subreaper()
sleeper = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(60)"
subprocess.run([sys.executable, "-c", sleeper], env={**os.environ, "FAULTS_TEST": "x"})
(orphan,) = kinds.descendants()
assert orphan.ppid() == os.getpid() and orphan in kinds.marked("FAULTS_TEST", "x")
orphan.kill()
while orphan.is_running() and kinds.lives(orphan): pass
assert kinds.descendants() == [] and orphan.pid not in {child.pid for child in kinds.psutil.Process().children()}
"""
    folder = os.path.dirname(kinds.__file__)
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def rows(*events: tuple[str, dict]) -> list[dict]:
    return [{"event": event, "mode": "async", "story": 1, **row} for event, row in events]


def test_the_table_counts_what_came_of_each_kill():
    found = rows(
        ("begin", {}),
        ("kill", {"kind": "engine", "outcome": "ended", "status": "failed"}),
        ("orphan", {"kind": "?"}),
        ("kill", {"kind": "engine", "outcome": "hung", "status": "running"}),
        ("failed", {}),
        ("stuck", {}),
        ("kill", {"kind": "reward", "outcome": "went on"}),
        ("late_end", {"status": "failed"}),
        ("end", {"steps": 12, "skipped": 0, "doubled": 1, "prior_error": 4e-17, "problems": ["doubled: 1"]}),
    )
    lines = table.of(found).splitlines()
    assert lines[2:4] == [
        "| async | engine | 2 | 1 | 0 | 1 | 1 | 1 | 1 | 1 |",
        "| async | reward | 1 | 1 | 0 | 0 | 1 | 0 | 0 | 0 |",
    ]
    assert lines[-1] == "| async | 1 | 12 | 4e-17 | 0 | 1 | 1 stuck, doubled |"
    assert table.of([]).splitlines()[0].startswith("| mode | killed |")


def test_a_campaign_that_was_cut_off_goes_on_where_it_stopped():
    args = campaign.parse(["--kinds", "engine", "generator", "--modes", "sync", "async", "--kills", "2"])
    found = rows(("begin", {}), ("kill", {"kind": "engine", "outcome": "ended"}))
    assert campaign.missing(found, args) == {("sync", "engine"): 2, ("async", "engine"): 1, ("async", "generator"): 2}
    assert campaign.unfinished(found, "async") == (1, True)
    assert campaign.unfinished([*found, *rows(("end", {}))], "async") == (2, False)
    assert campaign.unfinished(found, "sync") == (1, False)


def test_the_training_is_one_that_the_checks_can_follow():
    assert workshop.ROWS == workshop.STEPS * workshop.BATCH
    assert workshop.ROWS == 4 * 2 * 3, "as many prompts as build() writes"


@pytest.mark.nightly  # of trainings that are nightly themselves; daily: unit/test_preflight.py
@pytest.mark.parametrize("mode", workshop.RANKS)
def test_the_training_passes_its_own_checks(mode, tmp_path):
    workshop.build(tmp_path)
    command = [sys.executable, "-m", "openrlhf_ebpo.cli.train_ppo_ray", *workshop.flags(tmp_path, tmp_path, mode, 1)]
    done = subprocess.run([*command, "--dry_run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


STAND_IN = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--ckpt.output_dir") + 1]) / "run"
if (folder.parents[1] / "broken").exists():
    sys.exit("error: it is broken")
folder.mkdir(parents=True, exist_ok=True)
(folder / "run.json").write_text(json.dumps({"status": "failed"}))
done = len((folder / "metrics.jsonl").read_text().splitlines()) if (folder / "metrics.jsonl").exists() else 0
for step in range(done + 1, 9):
    time.sleep(0.2)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": step}) + "\\n")
"""
STORY = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
import kinds, story
from moment import Moment
kinds.become_subreaper()
story.PAUSE_SECONDS = 0.1
def told(number):
    rows = []
    def report(event, **row):
        rows.append({"event": event, **row})
    command = [sys.executable, "-c", sys.argv[3], "-m openrlhf_ebpo.cli.train_ppo_ray"]
    return story.Story(pathlib.Path(sys.argv[2]), "async", number, 1, report, ["driver"], command), rows
first, rows = told(1)
assert first.strike("driver", Moment("step", 3)), rows
(kill,) = rows
assert (kill["kind"], kill["outcome"], kill["status"]) == ("driver", "ended", "failed") and 3 <= kill["step"] < 8, kill
assert first.status == "running" and not first.alive()
first.go_on()
assert first.status == "complete" and len(rows) == 1 and first.step() == 8
first.close()
broken, rows = told(2)
(broken.output / "broken").touch()
while broken.status == "running":
    broken.strike("driver", Moment("step"))
assert [row["event"] for row in rows] == ["failed", "failed", "failed", "stuck"]
assert rows[-1]["words"] == "error: it is broken"
broken.close()
assert kinds.descendants() == []
"""


def test_a_training_is_killed_repeated_and_given_up_where_it_does_not_start(tmp_path):
    """Of a stand-in, which makes a step every 0.2 s; real trainings are killed in test_kills.py."""
    command = [sys.executable, "-c", STORY, os.path.dirname(kinds.__file__), str(tmp_path), STAND_IN]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly  # of a harness that runs nightly; daily: faults/test_parts.py, the other tests
def test_a_campaign_that_is_told_to_stop_leaves_nothing_behind(tmp_path):
    """Its training is another program here, which never ends."""
    command = [sys.executable, campaign.__file__, "--dir", str(tmp_path), "--modes", "sync", "--kinds", "driver"]
    process = subprocess.Popen([*command, "--command", f"{sys.executable} -c 'import time; time.sleep(600)'"])
    log = tmp_path / "sync-1" / "log-000.txt"
    deadline = time.monotonic() + seconds(120)
    started = []
    while not (log.exists() and started) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
        started = kinds.psutil.Process(process.pid).children()
    (started,) = started
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) != 0
    assert not kinds.lives(started)


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path, wanted=True)
    if not made.mounted:
        pytest.skip("a small disk can only be made by root")
    yield made
    made.remove()


def test_a_start_on_a_full_disk_names_it_and_says_what_to_do(disk):
    disk.fill()
    args = {"actor": {"model_name_or_path": "m"}, "data": {"prompt_dataset": "d"}, "train": {"seed": 7}}
    run = {"name": "r", "argv": [], "args": args, "resume": False}
    with pytest.raises(
        RunDirectoryError, match=r"the disk of .*/run is full .*run\.json.*: make room on it, or name"
    ) as full:
        open_run(disk.folder / "run", **run)
    assert str(disk.folder / "run") in str(full.value)


def test_a_full_disk_does_not_keep_run_json_at_running(disk):
    run = {"status": "running", "args": {str(number): number for number in range(2000)}, "error": None}
    write_json(disk.folder / "run.json", run)
    disk.fill()
    close_run(disk.folder, "failed", "OSError: No space left on device")
    assert read_run(disk.folder)["status"] == "failed" and read_run(disk.folder)["args"] == run["args"]
    before = (disk.folder / "run.json").read_bytes()
    with pytest.raises(OSError, match="No space"):
        close_run(disk.folder, "failed", "x" * 10**6)
    assert (disk.folder / "run.json").read_bytes() == before
