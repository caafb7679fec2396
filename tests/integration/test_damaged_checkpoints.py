"""Checkpoints are damaged, and the run resumes from a complete one."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.cli import main as verify
from openrlhf_ebpo.run import checkpoint_list
from openrlhf_ebpo.run.manifest import damage
from openrlhf_ebpo.run.run_log import read_metrics

pytestmark = (
    pytest.mark.nightly
)  # daily: unit/test_resume.py, unit/test_manifest.py, unit/test_checkpoints.py, unit/test_run_lock.py


@pytest.fixture(scope="module")
def story(train, command, tmp_path_factory):
    """Two ranks with ZeRO 2 train three steps, each saved and exported. Then `latest` is lost, so is the line of step 2
    in checkpoints.jsonl, a byte of rank 1's shard of step 3 flips, and the run resumes."""
    output = tmp_path_factory.mktemp("damaged")
    run_dir, actor = output / "model" / "run", output / "ckpt" / "_actor"

    def argv(**changes):
        settings = {
            "actor__num_gpus_per_node": 2,
            "ds__zero_stage": 2,
            "ckpt__save_steps": 1,
            "ckpt__save_hf": True,
            "ckpt__load_enable": True,
        }
        return command(output, **settings, **changes)

    first = train(argv())
    first.succeed()
    row_of_step_3 = read_metrics(run_dir)[2]
    (actor / "latest").unlink()
    flip(next((actor / "global_step3").glob("*zero_pp_rank_1_*")))
    forget(run_dir, "global_step2")
    second = train(argv(ckpt__max_num=4))
    second.succeed()
    return SimpleNamespace(**locals())


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def forget(run_dir: Path, tag: str) -> None:
    """As a death between a save and its line."""
    path = run_dir / "checkpoints.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if f'"{tag}"' not in line))


def test_the_run_went_on_from_the_newest_whole_checkpoint_and_said_so(story):
    assert "global_step3 is skipped: " in story.second.output and "its checksum differs" in story.second.output
    assert "resuming from global_step2 of " in story.second.output
    assert [row["step"] for row in read_metrics(story.run_dir)] == [1, 2, 3]
    (aside,) = [path for path in (story.run_dir / "superseded").iterdir() if path.name.endswith("after-step-000002")]
    assert json.loads((aside / "metrics.jsonl").read_text()) == story.row_of_step_3
    assert json.loads((story.run_dir / "prior.json").read_text())["batches"] == 3


def test_what_was_not_listed_is_and_the_run_is_what_it_says(story, capsys):
    assert "global_step2 is complete and was not in checkpoints.jsonl" in story.second.output
    assert [row["step"] for row in checkpoint_list.rows(story.run_dir)] == [1, 2, 3]
    verify(["verify", str(story.run_dir)])
    assert capsys.readouterr().out.endswith("nothing is wrong\n")


def test_the_damaged_checkpoint_was_saved_again_and_all_are_whole(story):
    assert (story.actor / "latest").read_text() == "global_step3"
    found = [path for path in story.actor.iterdir() if path.is_dir()]
    assert sorted(path.name for path in found) == ["global_step1", "global_step2", "global_step3"]
    assert [damage(path) for path in found] == [None] * 3
