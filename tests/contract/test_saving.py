"""Checkpoints through the patched strategy: upstream's choice of what goes, but only once the new one is complete."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from deepspeed_engine import Engine

from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.manifest import damage
from openrlhf_ebpo.run.resume import CheckpointError, groups, newest_complete
from openrlhf_ebpo.run.run_log import PRIOR
from openrlhf_ebpo.upstream.policy import checkpoint
from openrlhf_ebpo.upstream.policy.rotation import rotate
from openrlhf_ebpo.upstream.saving import CLIENT_STATE, STATE_KEY


def folders(directory) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_dir()}


SAVES = [
    ("global_step1", 0.3),
    ("global_step2", None),
    ("best_global_step2", 0.5),
    ("global_step3", 0.1),
    ("global_step4", 0.1),
    ("best_global_step4", 0.7),
    ("global_step5", 0.9),
    ("global_step6", 0.2),
]


@pytest.mark.parametrize("max_num", [1, 2, 3, 10])
def test_the_same_checkpoints_are_left_as_upstream_leaves(strategy, tmp_path, max_num):
    original = type(strategy).save_ckpt.__wrapped__
    for tag, metric in SAVES:
        original(strategy, Engine(), str(tmp_path / "theirs"), tag, max_num, metric_value=metric)
        strategy.save_ckpt(Engine(), str(tmp_path / "ours"), tag, max_num, metric_value=metric)
        assert folders(tmp_path / "ours") == folders(tmp_path / "theirs")
        assert (tmp_path / "ours" / "latest").read_text() == (tmp_path / "theirs" / "latest").read_text() == tag


@pytest.mark.parametrize("tag", ["global_step3", "best_global_step3"])
def test_a_crash_while_saving_leaves_all_that_was_saved(strategy, tmp_path, tag):
    actor = tmp_path / "_actor"
    for old in ("global_step1", "best_global_step1", "global_step2"):
        strategy.save_ckpt(Engine(), str(actor), old, 2)
    before = folders(actor)
    with pytest.raises(OSError, match="disk full"):
        strategy.save_ckpt(Engine(dies=True), str(actor), tag, 1)
    assert folders(actor) >= before == {"global_step1", "best_global_step1", "global_step2"}
    assert newest_complete(groups(tmp_path, "ebpo")).tag == "global_step2"
    strategy.save_ckpt(Engine(), str(actor), tag, 9)  # the step is repeated
    assert folders(actor) == {"global_step1", "best_global_step1", "global_step2", tag} - (
        {"best_global_step1"} if tag.startswith("best") else set()
    )


def test_a_crash_while_a_step_is_saved_again_leaves_what_was_saved_before(strategy, tmp_path):
    actor = tmp_path / "_actor"
    for step in (1, 2):
        strategy.save_ckpt(Engine(), str(actor), f"global_step{step}")
    with pytest.raises(OSError, match="disk full"):
        strategy.save_ckpt(Engine(dies=True), str(actor), "global_step2")
    assert newest_complete(groups(tmp_path, "ebpo")).tag == "global_step1"
    (aside,) = (tmp_path / "superseded").glob("*/_actor/global_step2")
    assert damage(aside) is None


def test_the_prior_lies_in_the_checkpoint_before_latest_names_it(strategy, tmp_path, monkeypatch):
    from openrlhf_ebpo.upstream.policy import checkpoint

    def write_text(path, text):
        assert (tmp_path / text / PRIOR).is_file()
        Path(path).write_text(text)

    monkeypatch.setattr(checkpoint, "write_text", write_text)
    state = {"schema": 1, "batches": 3}
    strategy.save_ckpt(Engine(), str(tmp_path), "s1", client_state={STATE_KEY: state})
    assert json.loads((tmp_path / "s1" / PRIOR).read_text()) == state
    assert (tmp_path / "latest").read_text() == "s1"


def test_the_manifest_has_the_rows_that_the_driver_identified(strategy, tmp_path):
    strategy.args.ckpt = SimpleNamespace(attempt="a", data={"rows": 96, "sha256": "0"})
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step1")
    found = manifest.read(tmp_path / "global_step1")
    assert (found.attempt, found.data) == ("a", {"rows": 96, "sha256": "0"})


def test_the_first_rank_alone_writes_what_is_not_its_share(strategy, tmp_path):
    """The others save their shares; the manifest, `latest`, the prior and the rotation are of one process."""
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step1", 1)
    strategy.is_rank_0 = lambda: False
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step2", 1, client_state={STATE_KEY: {"schema": 1}})
    assert folders(tmp_path) == {"global_step1", "global_step2"} and (tmp_path / "latest").read_text() == "global_step1"
    assert [path.name for path in (tmp_path / "global_step2").iterdir()] == ["weights"]

    strategy.args.ckpt = SimpleNamespace(output_dir=str(tmp_path / "model"))
    (tmp_path / "model").mkdir()
    model = type("Model", (checkpoint.PolicyWithPrior, Exports), {})(strategy)
    model.remember_prior({"schema": 1})
    model.save_model()
    assert list((tmp_path / "model").iterdir()) == []
    strategy.is_rank_0 = lambda: True
    model.save_model()
    assert [path.name for path in (tmp_path / "model").iterdir()] == [PRIOR]


class Exports:
    def __init__(self, strategy):
        self.strategy = strategy

    def save_model(self): ...


def test_an_old_checkpoint_that_cannot_be_deleted_does_not_end_the_training(strategy, tmp_path, monkeypatch):
    """As on a network disk, where a file is still open somewhere."""
    said = []
    strategy.print = said.append
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step1", 1)
    with monkeypatch.context() as patched:

        def refuse(path):
            raise OSError(39, "Directory not empty", path)

        patched.setattr("shutil.rmtree", refuse)
        strategy.save_ckpt(Engine(), str(tmp_path), "global_step2", 1)
    assert folders(tmp_path) == {"global_step1", "global_step2"} and (tmp_path / "latest").read_text() == "global_step2"
    assert "Directory not empty" in said[-1] and "global_step1" in said[-1]
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step3", 1)
    assert folders(tmp_path) == {"global_step3"}


def test_an_interrupted_save_takes_no_place_among_the_checkpoints(strategy, tmp_path):
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step1", 2)
    with pytest.raises(OSError, match="disk full"):
        strategy.save_ckpt(Engine(dies=True), str(tmp_path), "global_step2", 2)
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step3", 2)
    assert folders(tmp_path) == {"global_step1", "global_step3"}


def test_every_file_is_on_disk_before_the_list_says_so(strategy, tmp_path, monkeypatch):
    synced, folder = set(), tmp_path / "global_step1"
    sync, complete = os.fsync, manifest.complete

    def fsync(descriptor):
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def checked(checkpoint, *args, **facts):
        assert {str(folder), str(folder / "weights")} <= synced
        complete(checkpoint, *args, **facts)

    monkeypatch.setattr("os.fsync", fsync)
    monkeypatch.setattr(manifest, "complete", checked)
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step1")
    assert damage(folder) is None


def test_a_disk_that_fails_while_it_writes_leaves_no_complete_checkpoint(strategy, tmp_path, monkeypatch):
    """fsync reports it, in the thread that waits for the disk; the checksum is of what is in memory."""
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step1", 1)

    def fail(folder):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "sync_folder", fail)
        with pytest.raises(OSError, match="Input/output error"):
            strategy.save_ckpt(Engine(), str(tmp_path), "global_step2", 1)
    assert damage(tmp_path / "global_step2") and damage(tmp_path / "global_step1") is None
    assert (tmp_path / "latest").read_text() == "global_step1"


def test_nothing_goes_before_the_critics_part_is_whole_too_and_then_both_old_ones_go(strategy, tmp_path):
    strategy.args.algo.advantage.estimator = "gae"
    actor, critic = str(tmp_path / "_actor"), str(tmp_path / "_critic")
    for save_dir in (actor, critic):
        strategy.save_ckpt(Engine(), save_dir, "global_step1", 1)
    strategy.save_ckpt(Engine(), actor, "global_step2", 1)
    with pytest.raises(OSError, match="disk full"):
        strategy.save_ckpt(Engine(dies=True), critic, "global_step2", 1)
    assert newest_complete(groups(tmp_path, "gae")).tag == "global_step1"
    for load_dir in (actor, critic):
        assert strategy.load_ckpt(Engine(), load_dir)[1] == {"step": "global_step1"}
    strategy.save_ckpt(Engine(), critic, "global_step2", 1)
    assert folders(tmp_path / "_actor") == folders(tmp_path / "_critic") == {"global_step2"}


def test_the_limit_of_bytes_is_that_of_the_larger_of_policy_and_critic(strategy, tmp_path):
    folders_of_both = [tmp_path / "_actor", tmp_path / "_critic"]
    for step in (1, 2):
        for folder in folders_of_both:
            strategy.save_ckpt(Engine(), str(folder), f"global_step{step}", 9)
            (folder / f"global_step{step}" / "side_file").write_bytes(bytes(5000 if folder.name == "_actor" else 4000))
    rotate(strategy, folders_of_both, "global_step2", 9, 15_000)
    assert folders(folders_of_both[0]) == {"global_step1", "global_step2"}
    rotate(strategy, folders_of_both, "global_step2", 9, 9_000)
    assert [folders(folder) for folder in folders_of_both] == [{"global_step2"}] * 2


@pytest.mark.parametrize("damaged", ["who", "whale"])  # cut, or of other bytes
def test_the_newest_whole_checkpoint_is_loaded_whatever_latest_names(strategy, tmp_path, damaged):
    said = []
    strategy.print = said.append
    for step in (9, 10, 11):
        strategy.save_ckpt(Engine(), str(tmp_path), f"global_step{step}")
    (tmp_path / "latest").unlink()
    assert strategy.load_ckpt(Engine(), str(tmp_path)) == (f"{tmp_path}/global_step11", {"step": "global_step11"})
    (tmp_path / "global_step11" / "weights").write_text(damaged)
    os.utime(tmp_path / "global_step11" / "weights", ns=(1, 1))
    assert strategy.load_ckpt(Engine(), str(tmp_path))[1] == {"step": "global_step10"}
    assert any("global_step11 is skipped: weights" in line for line in said)
    assert strategy.load_ckpt(Engine(), str(tmp_path), "global_step9")[1] == {"step": "global_step9"}


def test_no_whole_checkpoint_is_an_error_and_none_at_all_is_not(strategy, tmp_path):
    assert strategy.load_ckpt(Engine(), str(tmp_path)) == (None, {})
    (tmp_path / "latest").touch()
    assert strategy.load_ckpt(Engine(), str(tmp_path)) == (None, {})
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step1")
    (tmp_path / "global_step1" / "weights").unlink()
    with pytest.raises(CheckpointError, match="weights is missing"):
        strategy.load_ckpt(Engine(), str(tmp_path))
    assert folders(tmp_path) == {"global_step1"}


def test_a_damaged_checkpoint_goes_before_a_complete_one(strategy, tmp_path):
    for step in (1, 2, 3):
        strategy.save_ckpt(Engine(), str(tmp_path), f"global_step{step}", 3)
    (tmp_path / "global_step3" / "weights").unlink()
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step4", 3)
    assert folders(tmp_path) == {"global_step1", "global_step2", "global_step4"}
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step5", 2)
    assert folders(tmp_path) == {"global_step4", "global_step5"}


def test_the_step_that_is_asked_for_is_loaded(strategy, tmp_path):
    for step in (1, 2):
        strategy.save_ckpt(Engine(), str(tmp_path), f"global_step{step}")
    strategy.args.ckpt = SimpleNamespace(load_step=1)
    assert strategy.load_ckpt(Engine(), str(tmp_path))[1] == {"step": "global_step1"}
    strategy.args.ckpt.load_step = 3
    with pytest.raises(CheckpointError, match=r"load_step 3: .*saved steps: 1, 2$"):
        strategy.load_ckpt(Engine(), str(tmp_path))


def test_a_deletion_that_is_interrupted_leaves_no_checkpoint(strategy, tmp_path, monkeypatch):
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step1", 1)
    with monkeypatch.context() as patched:

        def die(path):
            raise KeyboardInterrupt

        patched.setattr("shutil.rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            strategy.save_ckpt(Engine(), str(tmp_path), "global_step2", 1)
    assert damage(tmp_path / "global_step1") == "its saving was interrupted"
    strategy.save_ckpt(Engine(), str(tmp_path), "global_step3", 2)
    assert folders(tmp_path) == {"global_step2", "global_step3"}


def test_what_cannot_be_loaded_though_it_is_whole_is_named(strategy, tmp_path):
    """As one that was saved by another number of GPUs."""
    (tmp_path / "global_step1").mkdir()
    (tmp_path / "global_step1" / "weights").write_text("of others")
    manifest.complete(tmp_path / "global_step1")
    with pytest.raises(CheckpointError, match=r"(?s)global_step1 .*Assertion"):
        strategy.load_ckpt(Engine(), str(tmp_path))


class WithState(Engine):
    """Keeps its client state in DeepSpeed's file."""

    def save_checkpoint(self, save_dir, tag, client_state, save_latest):
        super().save_checkpoint(save_dir, tag, client_state, save_latest)
        torch.save({"module": {"w": torch.ones(4)}, **client_state}, Path(save_dir, tag, STATES))


STATES = "mp_rank_00_model_states.pt"
STATE = dict.fromkeys(CLIENT_STATE, 0)


@pytest.fixture
def actor(strategy, tmp_path):
    """Checkpoints of the steps 9 and 10, with a client state."""
    for step in (9, 10):
        strategy.save_ckpt(WithState(), str(tmp_path / "_actor"), f"global_step{step}", client_state=STATE)
    return tmp_path / "_actor"


@pytest.mark.parametrize(
    ("content", "why"),
    [({**STATE, "episode": None}, None), ({"module": {}}, "lacks episode, global_step"), (None, "cannot be read")],
)
def test_a_client_state_that_cannot_be_resumed_from_makes_the_one_before_the_newest(strategy, actor, content, why):
    """It was saved so: its checksum is right."""
    torch.save(content, actor / "global_step10" / STATES) if content else (actor / "global_step10" / STATES).write_text(
        ""
    )
    manifest.complete(actor / "global_step10")
    said = []
    strategy.print = said.append
    assert strategy.load_ckpt(Engine(), str(actor))[1] == {"step": "global_step9" if why else "global_step10"}
    assert not why or any("global_step10 is skipped: " in line and why in line for line in said)


def test_the_drivers_verdict_is_taken_and_nothing_is_read_again(strategy, actor, monkeypatch):
    strategy.args.ckpt = SimpleNamespace(verified="global_step9", load_step=None)
    with monkeypatch.context() as patched:
        patched.setattr(manifest, "_crc32", lambda path: pytest.fail(f"{path} is read"))
        assert strategy.load_ckpt(Engine(), str(actor))[1] == {"step": "global_step9"}
    torch.save({"module": {}}, actor / "global_step9" / STATES)  # rank 0 reads its client state all the same
    manifest.complete(actor / "global_step9")
    assert strategy.load_ckpt(Engine(), str(actor))[1] == {"step": "global_step10"}
    torch.save(STATE, actor / "global_step9" / STATES)
    manifest.complete(actor / "global_step9")
    (actor / "global_step9" / "weights").unlink()  # this node's disk has it otherwise
    assert strategy.load_ckpt(Engine(), str(actor))[1] == {"step": "global_step10"}


def test_the_arguments_keep_upstreams_names_order_and_defaults(strategy, tmp_path):
    import inspect

    patched = type(strategy).save_ckpt
    ours = inspect.signature(patched, follow_wrapped=False)
    assert str(ours) == str(inspect.signature(patched.__wrapped__))
    strategy.save_ckpt(Engine(), str(tmp_path))
    assert folders(tmp_path) == {"global_step7"}


def test_latest_names_the_new_checkpoint_before_an_old_one_goes(strategy, tmp_path, monkeypatch):
    named, rotate = [], checkpoint.rotate

    def watched(*arguments):
        named.append((tmp_path / "latest").read_text())
        return rotate(*arguments)

    monkeypatch.setattr(checkpoint, "rotate", watched)
    for tag in ("global_step1", "global_step2"):
        strategy.save_ckpt(Engine(), str(tmp_path), tag, 1)
    assert named == ["global_step1", "global_step2"] and folders(tmp_path) == {"global_step2"}
