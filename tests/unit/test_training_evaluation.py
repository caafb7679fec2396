"""--ckpt.best_metric_key: a name that no evaluation of the training has is an error at the start."""

import json

import pytest

from openrlhf_ebpo.command import nested
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.train.best_metric import check_best_metric, data_sources


@pytest.fixture
def values(tmp_path):
    data = tmp_path / "held_out.jsonl"
    data.write_text(json.dumps({"prompt": "1 + 1?", "label": "2"}) + "\n")
    return {
        "eval.dataset": str(data),
        "eval.split": "train",
        "eval.steps": 5,
        "eval.n_samples_per_prompt": 16,
        "ckpt.best_metric_key": "",
    }


def check(values: dict) -> None:
    args = nested(values)
    check_best_metric(args.ckpt.best_metric_key, args.eval)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ckpt.best_metric_key": "eval_default_response_length_mean"}, "mean: not a score of the evaluations"),
        (
            {"ckpt.best_metric_key": "eval_default_maj16"},
            "not a score of the evaluations. There are eval_default_pass1, eval_default_pass16; none saves",
        ),
        ({"ckpt.best_metric_key": "eval_math_pass1"}, "There are eval_default_pass1, eval_default_pass16"),
        ({"ckpt.best_metric_key": "eval_default_pass8"}, "There are eval_default_pass1, eval_default_pass16"),
        ({"ckpt.best_metric_key": "pass1"}, "not a score of the evaluations"),
        (
            {"ckpt.best_metric_key": "eval_default_pass1", "eval.steps": -1},
            "--ckpt.best_metric_key eval_default_pass1: nothing is evaluated .* --eval.dataset and --eval.steps",
        ),
        (
            {"ckpt.best_metric_key": "eval_default_pass1", "eval.dataset": None},
            "nothing is evaluated during training",
        ),
    ],
)
def test_a_metric_that_no_evaluation_has_is_named_at_the_start(values, changes, expected):
    with pytest.raises(UsageError, match=expected):
        check({**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"eval.dataset": None, "eval.steps": -1, "ckpt.best_metric_key": "none"},
        {"eval.dataset": None},
        {"ckpt.best_metric_key": "eval_default_pass1"},
        {"ckpt.best_metric_key": "eval_default_pass16"},
        {"eval.dataset": "OWNER/NAME", "ckpt.best_metric_key": "eval_aime24_pass1"},
    ],
)
def test_what_an_evaluation_has_is_let_through(values, changes):
    check({**values, **changes})


def test_data_sources_are_read_where_that_is_cheap(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.jsonl").write_text('{"datasource": "amc"}\n{"prompt": "?"}\n')
    pq.write_table(pa.table({"datasource": ["aime", "aime"], "prompt": ["a", "b"]}), tmp_path / "b.parquet")
    assert data_sources(f"{tmp_path / 'a.jsonl'},{tmp_path / 'b.parquet'}", "train") == {"amc", "default", "aime"}
    assert data_sources("OWNER/NAME", "train") is None
    for content in ("{\n", '{"prompt": "?"}\n[1]\n'):
        (tmp_path / "broken.jsonl").write_text(content)
        assert data_sources(str(tmp_path / "broken.jsonl"), "train") is None
