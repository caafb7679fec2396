"""Check --ckpt.best_metric_key: evaluations during training have to have a score of this name."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.upstream.controller.prompts import DEFAULT_SOURCE
from openrlhf_ebpo.upstream.controller.scheduled_evaluation import BEST, NO_BEST

SOURCE_COLUMN = "datasource"


def check_best_metric(key: str, evaluation) -> None:
    """Check the metric that chooses the best checkpoint.

    Args:
        key: "" for OpenRLHF's default, NO_BEST for no best checkpoint. evaluation: upstream's arguments `eval`.

    Raises:
        UsageError: no evaluation has this metric.
    """
    if key in ("", NO_BEST):
        return
    if not (evaluation.dataset and evaluation.steps > 0):
        raise UsageError(f"{BEST} {key}: nothing is evaluated during training: give --eval.dataset and --eval.steps")
    sources = data_sources(evaluation.dataset)
    ends = list(dict.fromkeys(("_pass1", f"_pass{evaluation.n_samples_per_prompt}")))
    source = next((key[len("eval_") : -len(end)] for end in ends if key.endswith(end)), None)
    if key.startswith("eval_") and source is not None and (sources is None or source in sources):
        return
    names = [f"eval_{each}{end}" for each in sorted(sources or ["<data source>"])[:5] for end in ends]
    raise UsageError(
        f"{BEST} {key}: not a score of the evaluations. There are {', '.join(names)}; {NO_BEST} saves no best "
        "checkpoint"
    )


def data_sources(dataset: str) -> Collection[str] | None:
    """Return upstream's names for the parts of the evaluation; None if the data would have to be loaded to know."""
    import pyarrow.parquet as pq

    found: list = []
    for path in map(Path, dataset.split(",")):
        try:
            if path.suffix == ".jsonl":
                with open(path, encoding="utf-8") as file:
                    found += [json.loads(line).get(SOURCE_COLUMN) for line in file if line.strip()]
            elif path.suffix != ".parquet":  # loaded by datasets
                return None
            elif SOURCE_COLUMN in pq.read_schema(path).names:
                table = pq.read_table(path, columns=[SOURCE_COLUMN], partitioning=None)
                found += table[SOURCE_COLUMN].unique().to_pylist()
            else:
                found.append(None)
        except (OSError, ValueError, AttributeError):  # another kind of file, or not on this machine
            return None
    return {DEFAULT_SOURCE if source is None else str(source) for source in found}
