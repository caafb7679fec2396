"""Replay: the advantages of a run from its rollouts again, and what a run log must say for it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from replay_runs import STATE_KEY, G, M, arguments, set_prior_start, steps_with_a_start, train, trainer

from openrlhf_ebpo.cli import main
from openrlhf_ebpo.cli.logged_run import LoggedRun
from openrlhf_ebpo.estimator import stored
from openrlhf_ebpo.estimator.advantage import grpo_advantages
from openrlhf_ebpo.estimator.config import PRESETS
from openrlhf_ebpo.estimator.registry import ESTIMATORS, computed_here
from openrlhf_ebpo.estimator.replay import replay as replayed_steps
from openrlhf_ebpo.estimator.replay import unknown_starts
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.run.rollout_columns import MAX_ROWS, ROLLOUT_COLUMNS, read_columns
from openrlhf_ebpo.run.run_log import RunDirectoryError, read_rollouts, read_run, rollouts_path

EXAMPLE = Path(__file__).parents[2] / "examples" / "estimator"
EBPO = "--algo.advantage.ebpo"
HALF_LIFE = f"error: {EBPO}.half_life is -9.0: give a number of prompts above 0, or leave it out"
ALL = f"5 steps, {5 * (M * G - 1)} responses"


@pytest.fixture
def replay(capsys):
    """Runs the command: (exit status, last line of the output, or the error)."""

    def run(*argv) -> tuple[int, str]:
        status = 0
        try:
            main(["replay", *map(str, argv)])
        except SystemExit as stop:
            if isinstance(stop.code, str):
                print(stop.code)
            status = stop.code if isinstance(stop.code, int) else 1
        return status, capsys.readouterr().out.rstrip().splitlines()[-1]

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy that a test may break."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def rewrite(run_dir: Path, step: int, change) -> Path:
    """A step's file as `change` makes it of the table."""
    path = rollouts_path(run_dir, step)
    pq.write_table(change(pq.read_table(path)), path)
    return path


def set_column(name: str, values):
    return lambda table: table.set_column(table.column_names.index(name), name, values)


def change_settings(run_dir: Path, change) -> None:
    run = read_run(run_dir)
    change(run["args"])
    write_json(run_dir / "run.json", run)


# The one that ran


VARIANTS = [
    *((name, {}) for name in ESTIMATORS if computed_here(name)),
    *(("ebpo", {"preset": preset}) for preset in PRESETS if preset != "paper"),
    ("ebpo", {"history": "half_life", "half_life": 12.0, "clusters": "cluster"}),
    ("ebpo", {"history": "adaptive", "order": "lagged", "saturated": "zero"}),
    ("ebpo", {"weights": "score", "saturated": "zero", "normalise": "scale"}),
]


@pytest.mark.parametrize(("estimator", "settings"), VARIANTS)
def test_the_estimator_that_ran_gives_what_is_logged_bit_for_bit(tmp_path, replay, estimator, settings):
    """Every one, resumed once: its state went through a checkpoint."""
    states = train(tmp_path / "run", estimator, to=3, **settings)
    train(tmp_path / "run", estimator, states=json.loads(json.dumps(states)), **settings)
    assert replay(tmp_path / "run") == (0, f"bit for bit: {ALL}, baselines and advantages as logged")
    assert steps_with_a_start(tmp_path / "run") == []


def test_a_state_is_packed_once_a_step_however_often_it_is_saved(tmp_path, monkeypatch):
    packed, pack = [], stored.pack
    monkeypatch.setattr(stored, "pack", lambda *given: packed.append(given) or pack(*given))
    run = trainer(arguments(tmp_path / "run", "ebpo", to=3), {"global_step": 0})
    run.run(3)
    saved = [run._complete({})[STATE_KEY] for _ in range(3)]
    assert saved[0] is saved[1] is saved[2] and len(packed) <= 2 + 3, "before the first step, then one a step"


def test_a_variant_is_described_as_what_it_computes(tmp_path, capsys):
    """Robust advantages are divided by the standard deviation and not centred."""
    train(tmp_path / "run", preset="robust")
    for name, title in ((None, "EBPO robust"), ("ebpo", "EBPO"), ("ebpo.corrected", "EBPO corrected")):
        main(["replay", str(tmp_path / "run"), *(("--estimator", name) if name else ())])
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("replayed"))
        assert line.startswith(f"replayed  {title}: ") and ("standardised" in line) == (name == "ebpo")


def test_one_other_bit_in_one_advantage_is_found(run, replay):
    advantages = read_rollouts(run, 3)["advantage"].to_numpy().copy()
    advantages[7] = np.nextafter(advantages[7], 9)
    rewrite(run, 3, set_column("advantage", pa.array(advantages)))
    status, said = replay(run)
    assert status == 1 and "1 of 115 responses differ, first in step 3" in said
    assert "rounding" in said


def test_another_baseline_beside_the_same_advantages_is_found(run, replay):
    rewrite(run, 2, lambda table: set_column("baseline", pc.add(table["baseline"], 1e-3))(table))
    status, said = replay(run)
    assert status == 1 and "first in step 2" in said


def test_a_reward_that_was_changed_afterwards_changes_all_that_follows(run, replay):
    rewards = read_rollouts(run, 2)["reward"].to_pylist()
    flipped = [r if r is None or i else 1 - r for i, r in enumerate(rewards)]
    rewrite(run, 2, set_column("reward", pa.array(flipped, pa.float32())))
    status, said = replay(run)
    assert status == 1 and f"{4 * (M * G - 1)} of 115 responses differ, first in step 2" in said


@pytest.mark.parametrize("reset", [{"reset_prior": True}, {"reset_prior": True, "init_prior": "{tmp}/prior.json"}])
def test_a_run_that_left_its_prior_out_says_from_which_state_it_went_on(tmp_path, replay, reset):
    train(tmp_path / "other", to=2)
    shutil.copy(tmp_path / "other" / "prior.json", tmp_path)
    reset = {k: v.format(tmp=tmp_path) if isinstance(v, str) else v for k, v in reset.items()}
    run = tmp_path / "run"
    states = train(run, to=3)
    train(run, states=states, **reset)
    assert steps_with_a_start(run) == [4]
    assert replay(run)[1].startswith("bit for bit")
    train(run, to=6, states=states)  # once more from the same checkpoint, with its own prior
    assert steps_with_a_start(run) == []
    assert replay(run)[1].startswith("bit for bit: 6 steps")
    assert steps_with_a_start(next((run / "superseded").iterdir())) == [4]


def test_a_run_that_began_with_another_ones_prior_says_so_and_an_old_log_can_be_helped(tmp_path, replay):
    train(tmp_path / "other", to=2)
    prior, run = tmp_path / "other" / "prior.json", tmp_path / "run"
    train(run, init_prior=str(prior))
    assert steps_with_a_start(run) == [1]
    assert replay(run)[1].startswith("bit for bit")
    set_prior_start(rollouts_path(run, 1), None)
    status, said = replay(run)
    assert status == 1 and "first in step 1" in said
    assert replay(run, f"{EBPO}.init_prior", prior)[1].startswith("bit for bit")


def test_a_run_that_goes_on_in_another_run_directory_can_be_replayed_there(tmp_path, replay):
    states = train(tmp_path / "first", to=3)
    train(tmp_path / "second", states=states)
    assert steps_with_a_start(tmp_path / "second") == [4]
    assert replay(tmp_path / "second")[1].startswith("bit for bit: 2 steps")


def test_a_sparse_log_has_the_states_that_its_rollouts_do_not_tell(tmp_path, replay):
    run = tmp_path / "run"
    train(run, every=2, to=6)
    assert steps_with_a_start(run) == [2, 4, 6]
    assert replay(run)[1].startswith("bit for bit: 3 steps")
    assert replay(run, "--estimator", "score_weighted")[0] == 0
    status, said = replay(run, EBPO + ".pass_reward", 2)
    assert status == 1 and "state before step 2 is not known: the run had --logger.rollouts_every 2" in said


def as_grpo(run_dir: Path, step: int) -> None:
    """As if OpenRLHF had computed it: in float32, and without a baseline in the log."""

    def change(table):
        known = set_column("valid", pa.array([True] * M * G))(set_column("reward", pa.array(rewards))(table))
        without = set_column("baseline", pa.nulls(M * G, pa.float64()))(known)
        return set_column("advantage", pa.array(advantages.astype(np.float32).astype(float).ravel()))(without)

    rewards = np.nan_to_num(read_rollouts(run_dir, step)["reward"].to_numpy())
    advantages = grpo_advantages(rewards.reshape(M, G), np.ones((M, G), bool), 1.0)
    rewrite(run_dir, step, change)


def test_what_openrlhf_computed_agrees_within_its_rounding(run, replay):
    for step in range(1, 6):
        as_grpo(run, step)
    change_settings(run, lambda args: args["algo"]["advantage"].update(estimator="group_norm"))
    status, said = replay(run)
    assert status == 0 and said.startswith("as logged, within OpenRLHF's rounding in float32: 5 steps, 120 responses")
    rewrite(run, 3, lambda table: set_column("advantage", pc.add(table["advantage"], 1e-2))(table))
    status, said = replay(run)
    assert status == 1 and "step 3" in said
    change_settings(run, lambda args: args["algo"]["kl"].update(init_coef=0.01))
    status, said = replay(run)
    assert status == 0 and "--algo.kl.init_coef 0.01" in said


# Another one


def test_another_estimator_gives_what_it_would_have_given(tmp_path, replay):
    train(tmp_path / "a", "ebpo")
    train(tmp_path / "b", "score_weighted")
    status, said = replay(tmp_path / "a", "--estimator", "score_weighted")
    assert status == 0 and said.startswith(f"{ALL}: the largest difference")
    for ran, name, other in (("a", "score_weighted", "b"), ("b", "ebpo", "a")):
        logged_run = LoggedRun.read(tmp_path / ran)
        estimator = logged_run.build(name)
        for each, found in replayed_steps(estimator, logged_run.steps(), logged_run.starts(estimator)):
            logged = read_rollouts(tmp_path / other, each.step)
            baselines = np.broadcast_to(found.baselines, found.advantages.shape)
            for column, values in (("advantage", found.advantages), ("baseline", baselines)):
                assert pa.array(np.ravel(values), from_pandas=True).to_pylist() == logged[column].to_pylist()


def test_the_table_counts_what_turns_and_what_teaches_nothing(trained, capsys):
    main(["replay", str(trained), "--estimator", "score_weighted"])
    header, *steps, last = [line.split() for line in capsys.readouterr().out.splitlines()[3:-2]]
    assert header[:2] == ["steps", "responses"] and [line[0] for line in steps] == ["1", "2", "3", "4", "5"]
    assert last[0] == "all" and last[1] == "115"
    one = pa.concat_tables([read_rollouts(trained, step) for step in range(1, 6)]).filter(pc.field("valid"))
    assert float(last[5].rstrip("%")) == pytest.approx(100 * np.mean(one["advantage"].to_numpy() == 0), abs=0.06)


def test_flags_of_the_estimator_make_it_another_one(trained, replay):
    status, said = replay(trained, f"{EBPO}.pass_reward", 2)
    assert status == 0 and not said.startswith("bit for bit")
    assert replay(trained, "--estimator", "ebpo")[1].startswith("bit for bit")
    assert replay(trained, "--estimator", "ebpo.corrected")[1].startswith(f"{ALL}: the largest difference")
    assert replay(trained, f"{EBPO}.half_life", 9)[1].startswith(f"{ALL}: the largest difference")
    assert replay(trained, f"{EBPO}.half_life", -9) == (1, HALF_LIFE)


def test_a_flag_keeps_the_preset_that_ran_and_a_name_does_not(tmp_path, replay):
    train(tmp_path / "run", preset="corrected", half_life=9.0)
    assert replay(tmp_path / "run", f"{EBPO}.half_life", 9)[1].startswith("bit for bit")
    assert replay(tmp_path / "run", f"{EBPO}.clusters", "run")[1].startswith("bit for bit")
    assert not replay(tmp_path / "run", "--estimator", "ebpo", f"{EBPO}.half_life", 9)[1].startswith("bit for bit")


def test_a_users_own_runs_only_when_the_user_names_it(tmp_path, replay, monkeypatch):
    monkeypatch.chdir(EXAMPLE)
    train(tmp_path / "run", "running_mean:RunningMean")
    monkeypatch.chdir(tmp_path)
    status, said = replay(tmp_path / "run")
    assert status == 1 and "--estimator running_mean:RunningMean" in said
    monkeypatch.chdir(EXAMPLE)
    assert replay(tmp_path / "run", "--estimator", "running_mean:RunningMean")[1].startswith("bit for bit")


# What may be wrong


def test_a_run_that_is_still_being_written_is_replayed_as_far_as_it_is(run, replay, capsys):
    write_json(run / "run.json", {**read_run(run), "status": "running"})
    (run / "rollouts" / ".step-000006.parquet.7.tmp").write_bytes(b"PAR1 half")
    assert replay(run)[1].startswith("bit for bit: 5 steps")
    shutil.rmtree(run / "rollouts")
    assert replay(run) == (1, f"error: {run}/rollouts holds no step yet")


def test_a_missing_step_is_named_and_does_not_matter_without_a_state(run, replay):
    rollouts_path(run, 3).unlink()
    status, said = replay(run)
    assert status == 1 and "state before step 4 is not known: no rollouts of step 3" in said
    assert replay(run, "--estimator", "score_weighted")[1].startswith("4 steps")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 and no more PAR1", None])
def test_a_damaged_file_is_named(run, replay, content):
    path = rollouts_path(run, 4)
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    status, said = replay(run)
    assert status == 1 and str(path) in said


HOSTILE = {
    "text in numbers": (set_column("reward", pa.array(["1"] * M * G)), "the column reward is of type string"),
    "lists": (set_column("advantage", pa.array([[1.0]] * M * G)), "the column advantage is of type list"),
    "numbers in text": (set_column("prompt_id", pa.array([1] * M * G)), "the column prompt_id is of type int64"),
    "infinity": (set_column("reward", pa.array([np.inf] * M * G)), "23 valid responses have no finite reward"),
    "beyond float32": (set_column("reward", pa.array([1e300] * M * G)), "23 valid responses have no finite reward"),
    "no advantage": (set_column("advantage", pa.nulls(M * G, pa.float64())), "no finite advantage"),
    "nothing valid": (set_column("valid", pa.array([False] * M * G)), "no sample of this rollout batch is valid"),
    "unknown validity": (set_column("valid", pa.nulls(M * G, pa.bool_())), "the column valid lacks 24 values"),
    "negative tokens": (set_column("action_tokens", pa.array([-1] * M * G)), "the column action_tokens has values"),
    "no such weights": (set_column("score_weight", pa.array([np.nan] * M * G)), "the column score_weight has values"),
    "a group too short": (lambda table: table.slice(1), "are not groups of 4 responses"),
    "groups out of order": (lambda table: table.take(list(range(M * G))[::-1]), "are not groups of 4 responses"),
    "huge groups": (set_column("group", pa.array([2**62] * M * G)), "are not groups of 4 responses"),
    "no rows": (lambda table: table.slice(0, 0), "its 0 rows are not groups of 4 responses"),
    "a column too few": (
        lambda table: table.drop_columns(["valid", "group"]),
        "must have one column group and one valid",
    ),
    "none that an estimator needs": (
        lambda table: table.drop_columns(["score_weight"]),
        "must have one column score_weight",
    ),
    "no prompt": (set_column("prompt_id", pa.nulls(M * G, pa.string())), "the column prompt_id lacks values"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_columns_are_an_error_that_names_the_file(run, replay, kind):
    change, expected = HOSTILE[kind]
    path = rewrite(run, 2, change)
    status, said = replay(run)
    assert status == 1 and said.startswith(f"error: {path}") and expected in said


def test_more_rows_than_any_step_has_are_not_read(run, replay):
    """A few kilobytes on disk: runs of equal values."""
    rows = MAX_ROWS + 1
    table = pa.table({name: np.zeros(rows, np.int8) for name in ROLLOUT_COLUMNS})
    path = rewrite(run, 2, lambda _: table)
    assert path.stat().st_size < 1e6
    status, said = replay(run)
    assert status == 1 and f"{path} says that it has {rows:,} rows" in said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda a: a["rollout"].update(n_samples_per_prompt="4"), "rollout.n_samples_per_prompt is '4'"),
        (lambda a: a["rollout"].update(n_samples_per_prompt=10**30), "rollout.n_samples_per_prompt is 1000"),
        (lambda a: a["rollout"].update(n_samples_per_prompt=True), "rollout.n_samples_per_prompt is True"),
        (lambda a: a.update(rollout=[]), "rollout.n_samples_per_prompt is None"),
        (lambda a: a["algo"]["advantage"].update(estimator="\x1b[2J"), r"estimator is '\x1b[2J', no estimator"),
        (lambda a: a["algo"]["advantage"].update(estimator=["ebpo"]), "estimator is ['ebpo'], no estimator"),
        (lambda a: a["algo"]["advantage"].update(estimator="os:system"), "--estimator os:system"),
        (lambda a: a["algo"]["advantage"]["ebpo"].update(preset=["paper"]), "run.json: "),
        (lambda a: a["algo"]["advantage"]["ebpo"].update(pass_reward="much"), "run.json: "),
        (lambda a: a["algo"]["advantage"]["ebpo"].update(pass_reward=10**400), "run.json: "),
    ],
)
def test_a_hostile_run_json_is_an_error_that_names_it(run, replay, change, expected):
    change_settings(run, change)
    status, said = replay(run)
    assert status == 1 and said.startswith(f"error: {run}/run.json") and expected in said


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[1]", "prior schema 'list'"),
        ("{", "damaged"),
        (b"\xff", "damaged"),
        ("[" * 100_000, "damaged"),
        ('{"schema": 1}', "does not say which estimator it belongs to"),
        ('{"schema": 1, "identity": {"estimator": "opo"}}', "belongs to another estimator"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_hostile_state_before_a_step_is_an_error_that_names_its_file(run, replay, content, expected):
    path = rollouts_path(run, 2)
    set_prior_start(path, content)
    status, said = replay(run)
    assert status == 1 and str(path) in said and expected in said


def test_a_folder_without_a_run_and_one_above_a_run(tmp_path, trained, replay):
    assert "--logger.run_dir" in replay(tmp_path)[1]
    shutil.copytree(trained, tmp_path / "run")
    assert f"there is one in {tmp_path}/run" in replay(tmp_path)[1]


def test_what_cannot_be_replayed_says_why(trained, replay, capsys):
    assert "a critic's values" in replay(trained, "--estimator", "gae")[1]
    assert "leave it out" in replay(trained, f"{EBPO}.reset_prior")[1]
    with pytest.raises(SystemExit) as stop:
        main(["replay", str(trained), "--estimator", "grop"])
    assert stop.value.code == 2 and "there is no estimator 'grop'" in capsys.readouterr().err


def test_the_help_has_no_reset_prior(capsys):
    with pytest.raises(SystemExit):
        main(["replay", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "reset_prior" not in said.split("EBPO estimator:")[1].split(f"{EBPO}.half_life")[1]


# The pure part


def test_of_which_steps_the_state_before_is_unknown():
    assert unknown_starts([1, 2, 3], ()) == []
    assert unknown_starts([4, 5, 7], {}) == [4, 7]
    assert unknown_starts([4, 5, 7], {4: 0}) == [7]
    assert unknown_starts([], ()) == []


def test_two_columns_of_one_name_are_refused(tmp_path):
    path = tmp_path / "step-000001.parquet"
    table = pa.table([pa.array([0])] * 6, names=["group", "sample", "reward", "valid", "advantage", "group"])
    pq.write_table(table, path)
    with pytest.raises(RunDirectoryError, match="one column group"):
        read_columns(path)
