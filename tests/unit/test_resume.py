"""A run resumes from the newest complete checkpoint, whatever `latest` says."""

import zipfile

import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.manifest import complete, damage
from openrlhf_ebpo.run.resume import (
    CheckpointError,
    begin_checkpoint,
    check_fresh,
    groups,
    newest_complete,
    set_later_aside,
)
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.train.train_settings import check_checkpoints

MODEL = "mp_rank_00_model_states.pt"


def shard(path, content: bytes = b"x" * 1000):
    """As torch.save writes: a zip file, its directory at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)


def save(folder, tag: str, names=(MODEL,), **facts):
    """A checkpoint as this version saves it."""
    begin_checkpoint(folder / tag)
    for name in names:
        shard(folder / tag / name)
    complete(folder / tag, **facts)
    (folder / "latest").write_text(tag)


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture
def actor(tmp_path):
    folder = tmp_path / "_actor"
    for step in (2, 10):
        save(folder, f"global_step{step}")
    return folder


@pytest.mark.parametrize("latest", [None, "", "global_step2", "global_step99", "\0", "../elsewhere", "\xff"])
def test_whatever_latest_says_the_newest_is_taken(actor, latest):
    (actor / "latest").unlink()
    if latest is not None:
        (actor / "latest").write_bytes(latest.encode("latin-1"))
    assert newest_complete([actor]).tag == "global_step10"
    assert newest_complete(groups(actor.parent, "ebpo")).tag == "global_step10"


def test_no_checkpoint_is_no_loss(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        found = newest_complete([folder])
        assert (found.tag, found.skipped, found.lost) == (None, {}, False)
        found.check()


def test_side_files_are_not_needed(actor):
    (actor / "global_step10" / "prior.json").write_text("{")
    (actor / "global_step10" / "zero_to_fp32.py").write_text("")
    assert damage(actor / "global_step10") is None


def test_none_whole_refuses_and_says_what_to_do(actor):
    halve(actor / "global_step10" / MODEL)
    (actor / "global_step2" / MODEL).unlink()
    with pytest.raises(CheckpointError) as refused:
        newest_complete([actor]).check()
    for part in (str(actor), "global_step10: ", "global_step2: ", "Nothing was deleted", "--ckpt.path"):
        assert part in str(refused.value)
    assert newest_complete(groups(actor.parent, "ebpo")).tag is None


def test_folders_that_are_gone_though_latest_names_one_refuse(tmp_path):
    (tmp_path / "latest").write_text("global_step4")
    with pytest.raises(CheckpointError, match="global_step4: "):
        newest_complete([tmp_path]).check()


def test_a_first_save_that_was_interrupted_is_no_loss(tmp_path):
    (tmp_path / "global_step1").mkdir()  # killed before anything was written
    begin_checkpoint(tmp_path / "global_step2")
    shard(tmp_path / "global_step2" / MODEL)
    found = newest_complete([tmp_path])
    found.check()
    assert found.tag is None and "global_step2" in found.skipped


def test_a_save_that_was_interrupted_between_two_ranks_is_skipped(actor):
    """By their names the shards that are there would be all of one rank."""
    begin_checkpoint(actor / "global_step12")
    for name in (MODEL, "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        shard(actor / "global_step12" / name)
    assert newest_complete([actor]).tag == "global_step10"


def test_what_a_damaged_folder_holds_is_not_written_over(actor, tmp_path):
    """A snapshot may share its files by hard links."""
    path = actor / "global_step10" / MODEL
    (tmp_path / "snapshot").hardlink_to(path)
    (actor / "global_step10" / "manifest.json").write_text("{}")
    (actor / "latest").unlink()
    begin_checkpoint(actor / "global_step10")
    path.write_bytes(b"new")
    assert zipfile.is_zipfile(tmp_path / "snapshot")


def test_a_best_one_is_taken_where_it_was_saved_last(actor):
    save(actor, "best_global_step10")
    assert newest_complete([actor]).tag == "best_global_step10"
    save(actor, "global_step12")
    assert newest_complete([actor]).tag == "global_step12"


def test_a_best_one_is_taken_where_it_is_the_newest_that_is_complete(tmp_path):
    save(tmp_path, "global_step20")
    save(tmp_path, "best_global_step30")
    save(tmp_path, "global_step31")
    halve(tmp_path / "global_step31" / MODEL)
    assert newest_complete([tmp_path]).tag == "best_global_step30"


def test_exports_and_other_folders_are_no_checkpoints(actor):
    for name in ("global_step99_hf", "hub", "global_stepx"):
        shard(actor / name / MODEL)
    assert newest_complete([actor]).tag == "global_step10"


# Policy and critic


def test_policy_and_critic_go_on_from_the_same_step(tmp_path):
    actor, critic = groups(tmp_path, "gae")
    for folder in (actor, critic):
        for step in (2, 4):
            save(folder, f"global_step{step}")
    assert newest_complete([actor, critic]).tag == "global_step4"
    halve(critic / "global_step4" / MODEL)
    found = newest_complete([actor, critic])
    assert found.tag == "global_step2" and found.skipped["global_step4"].startswith("_critic: ")
    assert groups(tmp_path, "ebpo") == [actor] and newest_complete([actor]).tag == "global_step4"


def test_a_policy_without_its_critic_refuses(tmp_path):
    save(tmp_path / "_actor", "global_step2")
    with pytest.raises(CheckpointError, match="global_step2: _critic: "):
        newest_complete(groups(tmp_path, "gae")).check()


def test_policy_and_critic_of_two_starts_of_the_command_are_not_mixed(tmp_path):
    """A crash came after the policy had saved a step again, and before the critic had."""
    folders = groups(tmp_path, "gae")
    for folder in folders:
        save(folder, "global_step2", attempt="1")
        save(folder, "global_step4", attempt="1")
    save(folders[0], "global_step4", attempt="2")
    found = newest_complete(folders, contents=True)
    assert found.tag == "global_step2"
    assert found.skipped == {"global_step4": "policy and critic are not of the same save"}


# --ckpt.load_step


def test_the_step_that_is_asked_for_is_taken_and_another_is_refused_with_those_there(actor):
    save(actor, "best_global_step6")
    assert newest_complete([actor], 2).tag == "global_step2" and newest_complete([actor], 2).skipped == {}
    assert newest_complete([actor], 6).tag == "best_global_step6"
    with pytest.raises(CheckpointError, match=r"load_step 3: no complete .*saved steps: 2, 6, 10$"):
        newest_complete([actor], 3).check()
    halve(actor / "global_step2" / MODEL)
    with pytest.raises(CheckpointError, match=r"load_step 2: .*; global_step2: .* were saved; saved steps: 6, 10$"):
        newest_complete([actor], 2).check()
    with pytest.raises(CheckpointError, match=r"load_step 2: .*no step is saved"):
        newest_complete([actor.parent / "none"], 2).check()


def test_what_comes_after_the_step_is_set_aside_with_its_exports(actor):
    save(actor, "best_global_step9")
    for tag in ("global_step2", "global_step10", "best_global_step9", "final"):
        (actor.parent / f"{tag}_hf").mkdir()
    (actor / "latest").write_text("global_step10")
    aside = set_later_aside(actor.parent, 2)
    assert newest_complete([actor]).skipped == {} and (aside / "_actor" / "latest").is_file()
    assert sorted(path.name for path in actor.iterdir() if path.is_dir()) == ["global_step2"]
    assert sorted(path.name for path in actor.parent.glob("*_hf")) == ["final_hf", "global_step2_hf"]
    moved = (
        sorted(str(path.relative_to(aside)) for path in aside.glob("*/*")),
        sorted(p.name for p in aside.glob("*_hf")),
    )
    assert moved[0][:2] == ["_actor/best_global_step9", "_actor/global_step10"]
    assert moved[1] == ["best_global_step9_hf", "global_step10_hf"]
    assert newest_complete([actor]).tag == "global_step2" and set_later_aside(actor.parent, 2) is None
    assert damage(aside / "_actor" / "global_step10") is None


def test_interrupted_saves_are_deleted_and_damaged_checkpoints_of_later_steps_moved(actor):
    save(actor, "global_step12")
    halve(actor / "global_step12" / MODEL)
    for tag in ("global_step14", "best_global_step10"):
        begin_checkpoint(actor / tag)
        shard(actor / tag / MODEL)
    aside = set_later_aside(actor.parent, 10)
    assert [path.name for path in (aside / "_actor").iterdir() if path.is_dir()] == ["global_step12"]
    assert sorted(path.name for path in actor.iterdir() if path.is_dir()) == ["global_step10", "global_step2"]


# Without a manifest


def test_a_checkpoint_without_a_manifest_is_not_resumed_and_not_replaced(tmp_path):
    """OpenRLHF's own, or an incomplete copy: nothing says that all of it was saved."""
    actor = tmp_path / "_actor"
    shard(actor / "global_step2" / MODEL)
    (actor / "latest").write_text("global_step2")
    with pytest.raises(
        CheckpointError, match=r"global_step2: it has no manifest\.json: it was saved by OpenRLHF alone"
    ):
        newest_complete([actor]).check()
    with pytest.raises(CheckpointError, match=r"holds checkpoints of another run, the newest global_step2.*--force"):
        check_fresh(tmp_path, "ebpo")
    save(actor, "global_step1")
    found = newest_complete([actor])
    assert found.tag == "global_step1" and "manifest" in found.skipped["global_step2"]


# What else is wrong with one


def test_an_average_of_weights_that_is_not_saved_is_not_resumed(tmp_path):
    settings = RunSettings(tmp_path / "run", tmp_path, resume=True, force=True)
    check_checkpoints(settings, averages=True)  # the folder does not exist yet
    save(tmp_path / "_actor", "global_step9")
    with pytest.raises(UsageError, match=r"--train\.enable_ema: "):
        check_checkpoints(settings, averages=True)


def test_a_new_run_is_refused_where_others_checkpoints_are(tmp_path):
    """A resume after its failure would load theirs."""
    save(tmp_path / "_actor", "global_step9")
    with pytest.raises(CheckpointError, match="another run"):
        check_checkpoints(RunSettings(tmp_path / "run", tmp_path), averages=False)
