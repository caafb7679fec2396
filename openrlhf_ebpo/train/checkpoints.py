"""Check the checkpoints of a training before it starts: what a resume finds, and what a new run would write among."""

from __future__ import annotations

import json

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.checkpoints import checkpoint_to_resume
from openrlhf_ebpo.run.resume import Search, check_fresh
from openrlhf_ebpo.run.run_log import PRIOR
from openrlhf_ebpo.run.run_settings import RunSettings


def check_checkpoints(run: RunSettings, averages: bool) -> Search | None:
    """Check that a resume finds its checkpoint, and that a new run does not write among those of another; returns what
    is resumed, None for a new run.

    Args:
        averages: OpenRLHF averages the weights (--train.enable_ema).

    Raises:
        UsageError: as `checkpoint_to_resume` and `check_fresh`; or averaged weights would be resumed.
    """
    if not run.resume:
        if not run.force:
            check_fresh(run.ckpt_path, run.estimator)
        return None
    found = checkpoint_to_resume(run)
    if found.tag and averages:
        raise UsageError(
            "--train.enable_ema: OpenRLHF does not save the averaged weights, and after a resume would average from "
            "the model before training: leave it out"
        )
    return found


def stored_prior(found: Search) -> dict | None:
    """Read prior.json of a checkpoint; None if it cannot be read, as the copy in the client states counts."""
    try:
        return json.loads((found.folders[0] / found.tag / PRIOR).read_text()) if found.tag else None
    except (OSError, ValueError):
        return None
