"""The best checkpoint: chosen by any metric of an evaluation, and known again after a resume."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path

from openrlhf_ebpo.run import resume
from openrlhf_ebpo.run.manifest import damage, step_of
from openrlhf_ebpo.run.run_log import read_metrics

logger = logging.getLogger(__name__)

BEST = "--ckpt.best_metric_key"
NO_BEST = "none"
DEFAULT = "_pass1"  # the end of what upstream chooses by if no key is given
METRIC = "metric.json"  # upstream's, in a checkpoint: metric_key, metric_value


class BestCheckpoint:
    """Mixin over BasePPOTrainer. Of equals the first stays the best, as upstream has it.

    Upstream takes metric and best value from the checkpoint that is loaded. So another metric on the command line has
    no effect, and a best checkpoint that was saved after that one is forgotten, and gives way to a worse. Here the
    command's metric counts, and the best value is that of the best existing checkpoint.
    """

    def restore_best_checkpoint_state(self, checkpoint_states) -> None:
        requested = self.best_eval_metric_key
        super().restore_best_checkpoint_state(checkpoint_states)
        step = (checkpoint_states or {}).get("global_step", 0)
        if not step:
            return
        was = self.best_eval_metric_key
        if was == NO_BEST or requested:
            self.best_eval_metric_key = requested
        if self.best_eval_metric_key != was:
            print(f"{BEST}: the best checkpoint is now chosen by {requested or 'pass@1'}, and was by {was}", flush=True)
        found = best_so_far(Path(self.args.ckpt.path), Path(self.args.logger.run_dir), self.best_eval_metric_key)
        self.best_eval_metric_value = -math.inf if found is None else found
        self._latest_eval_metric_value = None

    def _detect_eval_metric_key(self, eval_metrics):
        found, requested = super()._detect_eval_metric_key(eval_metrics), self.best_eval_metric_key
        if found is None and requested != NO_BEST:
            logger.warning(
                "%s %s: this evaluation has no such metric, and no best checkpoint is saved; it has %s",
                *(BEST, requested, ", ".join(sorted(eval_metrics))),
            )
        return found


def best_so_far(ckpt_path: Path, run_dir: Path, key: str) -> float | None:
    """Return the value of the best checkpoint; None without such a checkpoint, or if neither it nor metrics.jsonl has a
    value. Those of later steps than the one that is resumed from were moved aside."""
    folder = ckpt_path / "_actor"
    tags = [tag for tag in resume.tags_of([folder]) if tag.startswith(resume.BEST)]
    tag = max((tag for tag in tags if not damage(folder / tag)), key=step_of, default=None)
    if tag is None:
        return None
    chosen_by, value = saved_metric(folder / tag)
    if chosen_by and not (chosen_by == key if key else chosen_by.endswith(DEFAULT)):
        value = next((row.get(key) for row in read_metrics(run_dir) if row["step"] == step_of(tag)), None)
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def saved_metric(checkpoint: Path) -> tuple[str | None, float | None]:
    """Name and value of the metric by which a checkpoint was the best."""
    try:
        saved = json.loads((checkpoint / METRIC).read_text())
    except (OSError, ValueError):
        return None, None
    return (saved.get("metric_key"), saved.get("metric_value")) if isinstance(saved, Mapping) else (None, None)
