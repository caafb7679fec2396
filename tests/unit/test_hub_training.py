"""The Hub's flags of a training, and what driver and trainer do with them."""

import argparse
import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import hub_runs
import pytest
from hub_repos import File
from hub_runs import REPO, queue

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub import outbox, training, training_flags
from openrlhf_ebpo.hub.push import drain
from openrlhf_ebpo.hub_client import hub_api
from openrlhf_ebpo.run import manifest


def flags(*argv, **others):
    """The flat namespace of a training with the Hub's flags `argv`."""
    parser = argparse.ArgumentParser()
    training_flags.add_flags(parser)
    known = {
        "ckpt.save_steps": 2,
        "ckpt.save_hf": True,
        "ckpt.disable_ds": False,
        "ckpt.path": "ckpt",
        "ckpt.load_enable": False,
        "logger.run_dir": "run",
        "force": False,
        "actor.model_name_or_path": None,
        "algo.advantage.estimator": "ebpo",
        "algo.advantage.ebpo.init_prior": None,
        "algo.advantage.ebpo.reset_prior": False,
    }
    return {**vars(parser.parse_args(argv)), **known, **others}


@pytest.fixture
def pushed(hub, use_hub, make_run, monkeypatch):
    """A run directory whose steps 2 and 4 are at owner/model."""
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: {"README.md": b"# card\n"})
    run_dir = make_run()
    for step in (2, 4):
        queue(run_dir, step, full_state=[run_dir.parent / "ckpt" / "_actor" / f"global_step{step}"])
    assert drain(run_dir, hub_api(), attempts=1) is None
    return run_dir


def test_nothing_happens_without_a_repo(hub):
    values = flags()
    training_flags.check_flags(values)
    assert (
        training_flags.check_access(values) == [] and training_flags.resolve_resume(values) == [] and not hub.requests
    )


def test_private_is_the_default_and_can_be_turned_off():
    assert flags()["hub.private"] is flags("--hub.private")["hub.private"] is True
    assert flags("--hub.private", "false")["hub.private"] is False
    with pytest.raises(SystemExit):
        flags("--hub.private", "maybe")


@pytest.mark.parametrize(
    ("argv", "others", "words"),
    [
        (["--hub.repo", "nonsense"], {}, "--hub.repo nonsense"),
        (["--hub.repo", REPO], {"ckpt.save_hf": False}, "add --ckpt.save_hf"),
        (["--hub.repo", REPO, "--hub.every", "0"], {}, "--hub.every is 0"),
        (["--hub.repo", REPO, "--hub.wait", "-1"], {}, "--hub.wait is -1"),
        (["--hub.full_state"], {}, "--hub.full_state needs --hub.repo"),
        (["--hub.repo", REPO, "--hub.full_state"], {"ckpt.disable_ds": True}, "no optimizer state is saved"),
        (["--hub.trust_pickle"], {}, "belongs to --hub.resume_from"),
    ],
)
def test_flags_that_cannot_work(argv, others, words):
    with pytest.raises(UsageError, match=words):
        training_flags.check_flags(flags(*argv, **others))


def test_only_the_final_model_is_pushed_where_none_is_saved_before():
    training_flags.check_flags(flags("--hub.repo", REPO, **{"ckpt.save_steps": -1, "ckpt.save_hf": False}))


def test_a_wrong_token_stops_and_a_hub_that_is_away_warns(hub, use_hub, monkeypatch):
    values = flags("--hub.repo", REPO)
    assert training_flags.check_access(values) == [f"models will be pushed to {REPO}, a new private repo"]
    monkeypatch.setenv("HF_TOKEN", hub.read_token)
    with pytest.raises(UsageError, match="may only read"):
        training_flags.check_access(values)
    hub.stop()
    (warning,) = training_flags.check_access(values)
    assert warning.startswith("warning: the Hub cannot be reached") and hub.read_token not in warning


def test_an_existing_repo_is_described_and_another_runs_repo_is_refused(hub, pushed):
    hub.create("owner/public")
    assert "is public" in training_flags.check_access(flags("--hub.repo", "owner/public"))[0]
    with pytest.raises(UsageError, match="holds another run"):
        training_flags.check_access(flags("--hub.repo", REPO))
    own = {"logger.run_dir": str(pushed), "ckpt.load_enable": True}
    run = json.loads((pushed / "run.json").read_text())
    write_json(pushed / "run.json", {**run, "name": "resumed under another name"})
    assert "which exists and is private" in training_flags.check_access(flags("--hub.repo", REPO, **own))[0]
    with pytest.raises(UsageError, match="another run"):
        training_flags.check_access(flags("--hub.repo", REPO, **own, force=True))
    for name, text in {"words": b"not JSON", "deep": b"[" * 100_000, "list": b"[]"}.items():
        hub.create(f"owner/{name}").commit("main", {"run.json": File(text, False)}, "m")
        with pytest.raises(UsageError, match="holds another run"):
            training_flags.check_access(flags("--hub.repo", f"owner/{name}", **own))


def test_what_stays_private_although_it_was_to_be_public_is_said(hub, use_hub):
    hub.create("owner/old", private=True)
    (warning,) = training_flags.check_access(flags("--hub.repo", "owner/old", "--hub.private", "false"))
    assert warning.startswith("warning: owner/old exists and is private")


def test_resuming_takes_weights_and_prior_of_the_step(pushed, tmp_path):
    values = flags("--hub.resume_from", f"{REPO}@2", **{"ckpt.path": str(tmp_path / "new")})
    training_flags.resolve_resume(values)
    folder = Path(values["actor.model_name_or_path"])
    assert folder == tmp_path / "new" / "hub" / "owner--model@step-000002"
    assert json.loads((folder / "config.json").read_text())["step"] == 2
    assert json.loads(Path(values["algo.advantage.ebpo.init_prior"]).read_text())["batches"] == 2
    assert not values["ckpt.load_enable"] and not (folder / "full_state").exists()


def test_resuming_from_pickles_needs_the_flag(pushed, tmp_path):
    argv = ["--hub.resume_from", f"{REPO}@2", "--hub.trust_pickle"]
    values = flags(*argv, **{"ckpt.path": str(tmp_path / "new"), "actor.model_name_or_path": "base"})
    training_flags.resolve_resume(values)
    actor = tmp_path / "new" / "_actor"
    assert (actor / "latest").read_text() == "global_step2" and values["ckpt.load_enable"]
    assert (actor / "global_step2" / "mp_rank_00_model_states.pt").read_bytes() == b"pickle of step 2"
    assert values["actor.model_name_or_path"] == "base"
    (actor / "global_step2").rename(actor / "global_step9")  # the new run has gone on: its own checkpoint counts
    manifest.complete(actor / "global_step9")
    training_flags.resolve_resume(values)
    assert not (actor / "global_step2").exists()


@pytest.mark.parametrize("placed", [1, 2])
def test_a_state_that_was_half_placed_is_placed_again(pushed, tmp_path, monkeypatch, placed):
    argv = ["--hub.resume_from", f"{REPO}@2", "--hub.trust_pickle"]
    start = {"ckpt.path": str(tmp_path / "new"), "actor.model_name_or_path": "base"}
    put, calls = outbox.put, itertools.count()

    def killed(source, target):
        if next(calls) == placed:
            raise KeyboardInterrupt
        put(source, target)

    monkeypatch.setattr(outbox, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        training_flags.resolve_resume(flags(*argv, **start))
    actor = tmp_path / "new" / "_actor"
    assert {path.name for path in actor.rglob("*.*")} <= {"manifest.json", "prior.json", "mp_rank_00_model_states.pt"}
    assert (actor / "global_step2" / "manifest.json").exists() and not (actor / "latest").exists()
    monkeypatch.setattr(outbox, "put", put)
    training_flags.resolve_resume(flags(*argv, **start))
    assert manifest.damage(actor / "global_step2") is None


@pytest.mark.parametrize(
    ("argv", "others", "words"),
    [
        (["--hub.resume_from", f"{REPO}@2"], {"actor.model_name_or_path": "base"}, "give one of them"),
        (["--hub.resume_from", f"{REPO}@3"], {}, "no revision step-000003; it has main, step-000002, step-000004"),
        (["--hub.resume_from", "nonsense"], {}, "--hub.resume_from nonsense"),
        (["--hub.resume_from", "owner/weights", "--hub.trust_pickle"], {}, "pushed without --hub.full_state"),
    ],
)
def test_what_cannot_be_resumed_from(pushed, tmp_path, argv, others, words):
    queue(pushed, 4, repo="owner/weights")
    drain(pushed, hub_api(), report=lambda *_: None)
    with pytest.raises(UsageError, match=words):
        training_flags.resolve_resume(flags(*argv, **{"ckpt.path": str(tmp_path / "new"), **others}))


def test_what_was_pulled_before_does_without_the_hub(hub, pushed, tmp_path):
    values = {"ckpt.path": str(tmp_path / "new")}
    training_flags.resolve_resume(flags("--hub.resume_from", f"{REPO}@2", **values))
    hub.stop()
    notices = training_flags._pull_once(
        REPO, "step-000002", tmp_path / "new/hub/owner--model@step-000002", "it", False, False
    )
    assert "cannot be reached" in notices[0]


def test_a_run_that_is_resumed_keeps_the_weights_it_began_with(hub, pushed, tmp_path):
    new = tmp_path / "new"
    training_flags.resolve_resume(flags("--hub.resume_from", REPO, **{"ckpt.path": str(new)}))
    before = (new / "hub" / "owner--model@main" / "model.safetensors").read_bytes()
    outbox.add(pushed, 6, hub_runs.export_model(pushed.parent / "later", 6), repo=REPO)
    assert drain(pushed, hub_api(), attempts=1) is None  # main has moved on
    shutil.copytree(pushed.parent / "ckpt" / "_actor", new / "_actor")
    resumed = {"ckpt.path": str(new), "ckpt.load_enable": True}
    notices = training_flags.resolve_resume(flags("--hub.resume_from", REPO, **resumed))
    assert "is used as it is" in notices[0]
    assert (new / "hub" / "owner--model@main" / "model.safetensors").read_bytes() == before


# Driver and trainer


@pytest.fixture
def trainer(make_run, sections):
    run_dir = make_run(status="running")
    args = sections(
        **{
            **{name: value for name, value in flags("--hub.repo", REPO, "--hub.wait", "0").items() if "hub." in name},
            "ckpt.path": str(run_dir.parent / "ckpt"),
            "ckpt.save_steps": 2,
            "ckpt.save_hf": True,
            "ckpt.output_dir": str(run_dir.parent / "model"),
            "logger.run_dir": str(run_dir),
        }
    )
    return args, run_dir, training.Pushes(args)


def test_every_nth_saved_step_is_queued_and_counted(trainer):
    args, run_dir, pushes = trainer
    args.hub.every = 2
    pushes.queue_saved(2)
    assert pushes.metrics() == {"hub/pending": 0, "hub/failed": 0}
    pushes.queue_saved(4)
    assert pushes.metrics() == {"hub/pending": 1, "hub/failed": 0}
    assert [item.step for item in outbox.items(run_dir)] == [4]


def test_what_goes_wrong_before_the_outbox_is_told_and_counted_and_stops_nothing(trainer, capsys):
    _, run_dir, pushes = trainer
    pushes.queue_saved(6)  # the model lies on another machine
    assert "warning: hub: UsageError: " in capsys.readouterr().out
    assert pushes.metrics() == {"hub/pending": 0, "hub/failed": 1}
    assert [row["step"] for row in training.not_queued(run_dir)] == [6]
    (run_dir / "hub.json").write_text("damaged")
    assert pushes.metrics() == {"hub/pending": 0, "hub/failed": 1}  # it only tells
    training.finish(pushes.args)
    assert "step 6, never queued: UsageError: " in capsys.readouterr().out


def test_a_secret_in_the_tokenizers_files_is_told_at_the_start_and_stops_no_training(hub, use_hub, trainer, capsys):
    _, run_dir, pushes = trainer
    model = run_dir.parent / "ckpt" / "global_step2_hf"
    write_json(model / "tokenizer_config.json", {"token": "whatever", "pad_token": "<pad>"})
    link = run_dir.parent / "snapshot"
    link.mkdir()
    (link / "tokenizer_config.json").symlink_to(model / "tokenizer_config.json")  # as in the cache of the Hub's client
    for base in (model, link):
        _, warning = training_flags.check_access(flags("--hub.repo", REPO, **{"actor.model_name_or_path": str(base)}))
        assert (
            warning.startswith("warning: ") and f"{base}/tokenizer_config.json keeps a secret under 'token'" in warning
        )
    pushes.queue_saved(2)
    assert "tokenizer_config.json keeps a secret under 'token'" in (said := capsys.readouterr().out)
    assert "whatever" not in said and [row["step"] for row in training.not_queued(run_dir)] == [2]
    pushes.queue_saved(4)
    assert [item.step for item in outbox.items(run_dir)] == [4]


def test_a_push_is_reported_once(hub, trainer, use_hub, monkeypatch, capsys):
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: {})
    _, run_dir, pushes = trainer
    pushes.queue_saved(2)
    hub.fail(r"POST .*/commit/", 503)
    drain(run_dir, hub_api(), report=lambda *_: None, attempts=1)
    assert pushes.metrics() == {"hub/pending": 1, "hub/failed": 1}
    assert "step 2: attempt 1 failed, will be repeated" in capsys.readouterr().out
    drain(run_dir, hub_api(), report=lambda *_: None)
    pushes.metrics()
    pushes.metrics()
    assert capsys.readouterr().out.count("step 2 is pushed and verified") == 1
    assert training.Pushes(pushes.args).metrics()["hub/pending"] == 0 and capsys.readouterr().out == ""


def test_the_final_model_is_queued_unless_its_step_was(trainer):
    args, run_dir, pushes = trainer
    hub_runs.export_model(run_dir.parent / "model", 4)
    pushes.queue_saved(4)
    token = outbox.items(run_dir)[0].token
    training.queue_final(args)
    assert [item.token for item in outbox.items(run_dir)] == [token]
    (run_dir / "metrics.jsonl").open("a").write('{"step": 5, "time": 5}\n')
    training.queue_final(args)
    assert [item.step for item in outbox.items(run_dir)] == [4, 5]


def test_the_end_names_what_is_left_and_the_command_for_it(trainer, capsys):
    args, run_dir, pushes = trainer
    pushes.queue_saved(2)
    training.finish(args)
    out = capsys.readouterr().out
    assert f"not pushed yet: steps 2; finish with: openrlhf-ebpo hub push {run_dir}" in out
    assert f"hub push {run_dir}" in training.when_stopped(args)


LARGE = b'{"large": "%s"}' + b" " * outbox.LINK_FROM


@pytest.mark.parametrize("queued_by", ["training", "hub push"])
def test_a_repeated_step_does_not_write_through_its_snapshot(trainer, queued_by):
    args, run_dir, pushes = trainer
    model = run_dir.parent / "ckpt" / "global_step4_hf"
    (model / "tokenizer.json").write_bytes(LARGE % b"1")  # transformers writes it in place
    if queued_by == "training":
        args.hub.full_state = True
        pushes.queue_saved(4)
    else:
        outbox.add(run_dir, 4, model, repo=REPO)
        args.hub.repo = None
    (item,) = outbox.items(run_dir)
    states = [path for path in item.files() if path.startswith("full_state/_actor/global_step4/")]
    assert bool(states) == (queued_by == "training")
    before = {path: file.read_bytes() for path, file in item.files().items()}
    pushes.before_saving(4)
    hub_runs.export_model(model, 99)
    (model / "tokenizer.json").write_bytes(LARGE % b"2")
    assert {path: file.read_bytes() for path, file in item.files().items()} == before


def test_the_optimizers_state_is_left_out_before_the_disk_is_full_of_deleted_checkpoints(trainer, monkeypatch, capsys):
    args, run_dir, pushes = trainer
    args.hub.full_state = True
    pushes.queue_saved(2)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=30))
    pushes.queue_saved(4)
    assert "warning: hub: step 4 goes without the optimizer's state" in capsys.readouterr().out
    two, four = (item.files() for item in outbox.items(run_dir))
    assert any("full_state" in path for path in two) and not any("full_state" in path for path in four)
    assert "model.safetensors" in four and pushes.metrics() == {"hub/pending": 2, "hub/failed": 1}


def test_a_disk_without_locks_is_told_and_stops_nothing(trainer, monkeypatch, capsys):
    args, run_dir, pushes = trainer

    def refuse(*_):
        raise OSError(38, "Function not implemented")

    pushes.queue_saved(4)
    (run_dir / "hub" / "lock").touch()  # by the process that could not start
    monkeypatch.setattr("fcntl.flock", refuse)
    args.hub.wait = 1.0
    training.finish(args)
    out = capsys.readouterr().out
    assert "the disk has no locks" in out and "not pushed yet: steps 4" in out
