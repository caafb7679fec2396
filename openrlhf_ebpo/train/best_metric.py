"""Check --ckpt.best_metric_key: evaluations during training have to have a score of this name."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.upstream.controller.best_checkpoint import BEST, NO_BEST
from openrlhf_ebpo.upstream.controller.prompts import DEFAULT_SOURCE

SOURCE_COLUMN = "datasource"


@dataclass(frozen=True)
class BestMetricSettings:
    """The metric that chooses the best checkpoint, and what it depends on.

    key: "" for OpenRLHF's default, NO_BEST for no best checkpoint. dataset, steps, samples: of evaluations during
    training: data sets, the steps between two evaluations (up to 0: none), responses to a prompt.
    """

    key: str
    dataset: str | None
    steps: int
    samples: int

    @classmethod
    def from_args(cls, args) -> BestMetricSettings:
        """Read upstream's nested arguments."""
        evaluation = args.eval
        return cls(args.ckpt.best_metric_key, evaluation.dataset, evaluation.steps, evaluation.n_samples_per_prompt)

    def check(self) -> None:
        """Raises UsageError if no evaluation has this metric."""
        if self.key in ("", NO_BEST):
            return
        if not (self.dataset and self.steps > 0):
            raise UsageError(
                f"{BEST} {self.key}: nothing is evaluated during training: give --eval.dataset and --eval.steps"
            )
        sources = data_sources(self.dataset)
        ends = list(dict.fromkeys(("_pass1", f"_pass{self.samples}")))
        source = next((self.key[len("eval_") : -len(end)] for end in ends if self.key.endswith(end)), None)
        if self.key.startswith("eval_") and source is not None and (sources is None or source in sources):
            return
        names = [f"eval_{each}{end}" for each in sorted(sources or ["<data source>"])[:5] for end in ends]
        raise UsageError(
            f"{BEST} {self.key}: not a score of the evaluations. There are {', '.join(names)}; {NO_BEST} saves no best "
            "checkpoint"
        )


def data_sources(dataset: str) -> Collection[str] | None:
    """Return upstream's names for the parts of the evaluation; None if the data would have to be loaded to know."""
    found: set[str] = set()
    for name in dataset.split(","):
        try:
            found |= _sources_of(Path(name))
        except (OSError, ValueError, AttributeError):  # another kind of file, or not on this machine
            return None
    return found


def _sources_of(path: Path) -> set[str]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        if SOURCE_COLUMN not in pq.read_schema(path).names:
            return {DEFAULT_SOURCE}
        table = pq.read_table(path, columns=[SOURCE_COLUMN], partitioning=None)
        found = table[SOURCE_COLUMN].unique().to_pylist()
        return {DEFAULT_SOURCE if source is None else str(source) for source in found}
    if path.suffix != ".jsonl":
        raise ValueError(f"{path} is loaded by datasets")
    with open(path, encoding="utf-8") as file:
        found = (json.loads(line).get(SOURCE_COLUMN) for line in file if line.strip())
        return {DEFAULT_SOURCE if source is None else str(source) for source in found}
