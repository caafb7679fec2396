"""Check --ckpt.best_metric_key: evaluations during training have to have a score of this name."""

from __future__ import annotations

from openrlhf_ebpo.data.data_files import DataSetError, is_local, open_split
from openrlhf_ebpo.data.preflight import split_names
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
    sources = data_sources(evaluation.dataset, evaluation.split)
    ends = list(dict.fromkeys(("_pass1", f"_pass{evaluation.n_samples_per_prompt}")))
    source = next((key[len("eval_") : -len(end)] for end in ends if key.endswith(end)), None)
    if key.startswith("eval_") and source is not None and (sources is None or source in sources):
        return
    names = [f"eval_{each}{end}" for each in sorted(sources or ["<data source>"])[:5] for end in ends]
    raise UsageError(
        f"{BEST} {key}: not a score of the evaluations. There are {', '.join(names)}; {NO_BEST} saves no best "
        "checkpoint"
    )


def data_sources(dataset: str, split: str) -> set[str] | None:
    """Return upstream's names for the parts of the evaluation; None if a data set is not here, or damaged."""
    found: list = []
    for name in split_names(dataset):
        if not is_local(name):
            return None
        try:
            data = open_split(name, split)
        except DataSetError:  # the check of the data sets names it
            return None
        found += data.unique(SOURCE_COLUMN) if SOURCE_COLUMN in data.column_names else [None]
    return {DEFAULT_SOURCE if source is None else str(source) for source in found}
