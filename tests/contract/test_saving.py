"""Checkpoints through the patched strategy: upstream's choice of what goes, but only once the new one is complete."""

import json
from pathlib import Path

import pytest

from openrlhf_ebpo.checkpoint import FILE, STATE_KEY, latest_checkpoint


class Engine:
    """Writes a checkpoint as DeepSpeed does: the files, then `latest` if it is asked to."""

    global_steps = 7

    def __init__(self, dies: bool = False):
        self.dies = dies

    def save_checkpoint(self, save_dir, tag, client_state, save_latest):
        folder = Path(save_dir) / tag
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights").write_text("half")
        if self.dies:
            raise OSError("disk full")
        (folder / "weights").write_text("whole")
        if save_latest:
            (Path(save_dir) / "latest").write_text(tag)


@pytest.fixture
def strategy(monkeypatch):
    from openrlhf.utils import distributed_util
    from openrlhf.utils.deepspeed import deepspeed

    monkeypatch.setattr(distributed_util, "torch_dist_barrier_and_cuda_sync", lambda: None)
    monkeypatch.setattr(deepspeed, "torch_dist_barrier_and_cuda_sync", lambda: None)
    monkeypatch.setattr(deepspeed.deepspeed, "DeepSpeedEngine", Engine)
    monkeypatch.setattr("gc.collect", lambda: 0)  # half a second each time, with all of vLLM and torch in memory
    strategy = object.__new__(deepspeed.DeepspeedStrategy)
    strategy.is_rank_0 = lambda: True
    strategy.print = lambda *_: None
    return strategy


def folders(directory) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_dir()}


SAVES = [
    ("s1", 0.3),
    ("s2", None),
    ("best_s2", 0.5),
    ("s3", 0.1),
    ("s4", 0.1),
    ("best_s4", 0.7),
    ("s5", 0.9),
    ("s6", 0.2),
]


@pytest.mark.parametrize("max_num", [1, 2, 3, 10])
def test_the_same_checkpoints_are_left_as_upstream_leaves(strategy, tmp_path, max_num):
    original = type(strategy).save_ckpt.__wrapped__
    for tag, metric in SAVES:
        original(strategy, Engine(), str(tmp_path / "theirs"), tag, max_num, metric_value=metric)
        strategy.save_ckpt(Engine(), str(tmp_path / "ours"), tag, max_num, metric_value=metric)
        assert folders(tmp_path / "ours") == folders(tmp_path / "theirs")
        assert (tmp_path / "ours" / "latest").read_text() == (tmp_path / "theirs" / "latest").read_text() == tag


@pytest.mark.parametrize("tag", ["s3", "best_s3"])
def test_a_crash_while_saving_leaves_all_that_was_saved(strategy, tmp_path, tag):
    actor = tmp_path / "_actor"
    for old in ("s1", "best_s1", "s2"):
        strategy.save_ckpt(Engine(), str(actor), old, 2)
    with pytest.raises(OSError, match="disk full"):
        strategy.save_ckpt(Engine(dies=True), str(actor), tag, 1)
    assert folders(actor) >= {"s1", "best_s1", "s2"}
    assert latest_checkpoint(tmp_path) == actor / "s2"
    assert (actor / "s2" / "weights").read_text() == "whole"


def test_the_prior_lies_in_the_checkpoint_before_latest_names_it(strategy, tmp_path, monkeypatch):
    from openrlhf_ebpo import checkpoint

    def write_text(path, text):
        assert (tmp_path / text / FILE).is_file()
        Path(path).write_text(text)

    monkeypatch.setattr(checkpoint, "write_text", write_text)
    state = {"schema": 1, "batches": 3}
    strategy.save_ckpt(Engine(), str(tmp_path), "s1", client_state={STATE_KEY: state})
    assert json.loads((tmp_path / "s1" / FILE).read_text()) == state
    assert (tmp_path / "latest").read_text() == "s1"


def test_an_old_checkpoint_that_cannot_be_deleted_does_not_end_the_training(strategy, tmp_path, monkeypatch):
    """As on a network disk, where a file is still open somewhere."""
    said = []
    strategy.print = said.append
    strategy.save_ckpt(Engine(), str(tmp_path), "s1", 1)
    with monkeypatch.context() as patched:

        def refuse(path):
            raise OSError(39, "Directory not empty", path)

        patched.setattr("shutil.rmtree", refuse)
        strategy.save_ckpt(Engine(), str(tmp_path), "s2", 1)
    assert folders(tmp_path) == {"s1", "s2"} and (tmp_path / "latest").read_text() == "s2"
    assert "Directory not empty" in said[-1] and "s1" in said[-1]
    strategy.save_ckpt(Engine(), str(tmp_path), "s3", 1)
    assert folders(tmp_path) == {"s3"}


def test_the_arguments_keep_upstreams_names_order_and_defaults(strategy, tmp_path):
    import inspect

    patched = type(strategy).save_ckpt
    ours = inspect.signature(patched, follow_wrapped=False)
    assert str(ours) == str(inspect.signature(patched.__wrapped__))
    strategy.save_ckpt(Engine(), str(tmp_path))
    assert folders(tmp_path) == {"global_step7"}
