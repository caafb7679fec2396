"""What DeepSpeed restores of the optimizer, and what every rank lists: two ranks, ZeRO 0, 2 and 3."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_ebpo.record import manifest

SCRIPT = Path(__file__).with_name("ranks_that_resume.py")
STAGES = (0, 2, 3)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """(stage, rank) -> what it saved, loaded and wrote; and the folder."""
    folder = tmp_path_factory.mktemp("resumed")
    done = subprocess.run(
        [sys.executable, SCRIPT, folder],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, {(s, r): json.loads((folder / f"{s}-{r}.json").read_text()) for s in STAGES for r in (0, 1)}


@pytest.mark.parametrize("stage", STAGES)
def test_the_optimizers_numbers_are_the_checkpoints_and_the_schedules_shape_is_not(resumed, stage):
    """`record/changes.py` says so to whoever resumes with others."""
    for rank in (0, 1):
        saved, loaded = (resumed[1][stage, rank][name] for name in ("saved", "loaded"))
        kept = ("initial_lr", "betas", "eps", "weight_decay", "step")
        assert {name: loaded[name] for name in kept} == {name: saved[name] for name in kept}
        assert saved["initial_lr"] == 1e-3 and saved["max_norm"] == 1.0 and loaded["max_norm"] == 9.0


@pytest.mark.parametrize("stage", STAGES)
def test_every_rank_lists_what_it_wrote_and_the_manifest_has_all(resumed, stage):
    folder, found = resumed
    checkpoint = folder / str(stage) / "global_step3"
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    wrote = [set(found[stage, rank]["wrote"]) for rank in (0, 1)]
    assert wrote[0] | wrote[1] == files.keys() == {path.name for path in checkpoint.glob("*.pt")}
    assert wrote[0] and not wrote[0] & wrote[1] and bool(wrote[1]) == (stage > 0)
    assert manifest.damage(checkpoint, contents=True) is None
    assert manifest.settings(checkpoint)["actor.adam.lr"] == 1e-3
