"""Gold answers: the same values are read, and refused, as labels of a training, by `data prepare` and by evaluation."""

import json
import math
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

from openrlhf_ebpo.data import prepare
from openrlhf_ebpo.data.labels import label_notices
from openrlhf_ebpo.eval.tasks.loading import load_file
from openrlhf_ebpo.rewards.math.golds import GoldError, MissingGold, gold_text, read_label
from openrlhf_ebpo.rewards.math.math import reward_func

READ = [
    ("$\\frac{1}{2}$", "\\frac{1}{2}"),
    ("\\boxed{\\text{even}}", "\\text{even}"),
    ("$\\boxed{204}$", "204"),
    ("Thus we get \\boxed{7} and \\boxed{8}.", "7, 8"),
    ("\\$18.90", "18.90"),
    ("She sells 9.\nSo 9 * 2 = 18.\n#### 18", "18"),
    ("-3", "-3"),
    (" x ", "x"),
    (34, "34"),
    (27.0, "27"),
    (0.5, "0.5"),
    (1e-05, "0.00001"),
    (-2.5e-7, "-0.00000025"),
    (2**60 + 1, str(2**60 + 1)),
    ('["9"]', "9"),
    ("[9]", "9"),
    ('["\\\\frac{1}{2}"]', "\\frac{1}{2}"),
    ("[1, 2]", "[1, 2]"),  # an interval
    ("**Answer:** $5$", "5"),
    ("<answer>5</answer>", "5"),
    ("**5**", "5"),
    (Decimal("27.00"), "27"),
    (Decimal("0.10"), "0.10"),
    (["7"], "7"),
    ([7.0], "7"),
    (["1", 2, 3.0], "1, 2, 3"),
]
MISSING = [
    None,
    "",
    "  ",
    [],
    [None],
    "\\boxed{}",
    "####",
    "$$",
    math.nan,
    "proof",
    "notfound",
    "Not found",
    ["proof"],
    '["proof"]',
]
CODE = '{"inputs": ["1"], "outputs": ["2"]}'
REFUSED = [
    {"a": 1},
    True,
    [True],
    math.inf,
    [["7"]],
    CODE,
    f"[{CODE}]",
    '["1", "2"]',
    '[["7"]]',
    1.2345678901234568e29,
    2.0**53,
]


@pytest.mark.parametrize(("value", "expected"), READ)
def test_one_spelling(value, expected):
    assert gold_text(value) == expected


@pytest.mark.parametrize("value", MISSING + REFUSED)
def test_what_is_not_a_gold_answer(value):
    with pytest.raises(MissingGold if value in MISSING else GoldError, match="gold answer"):
        gold_text(value)


@pytest.mark.parametrize("label", ["Half of 14 is 7.\n#### 7", ["7"], 7, 7.0, "\\boxed{7}"])
def test_training_reads_the_label(label, grader):
    assert reward_func(["p \\boxed{7}", "p \\boxed{8}"], ["p", "p"], [label, label])["rewards"].tolist() == [1, 0]


@pytest.mark.parametrize(
    "label", ["x^2+", "a proof that goes on and on in words and words until it has said more than enough"]
)
def test_a_label_that_the_grader_refuses_is_none_for_prepare(label, grader):
    with pytest.raises(GoldError):
        read_label(label)
    (notice,) = label_notices("S", "label", ["1", "2", label])
    assert "1 of 3 labels" in notice and "row 3" in notice


VALUES = {
    "texts": [value for value, _ in READ if isinstance(value, str)]
    + ["", "$$", "proof", "notfound", CODE, '["1", "2"]'],
    "floats": [27.0, 0.5, 1e-05, -2.5e-7, math.nan, 1.2345678901234568e29],
    "integers": [34, 2**60 + 1],
    "lists": [["7"], ["1", "2"], [], ["proof"]],
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("layout", ["lines", "array"])
def test_prepare_and_evaluation_read_the_same_rows(tmp_path, kind, layout):
    rows = [{"Problem": f"Question {number}?", "Answer": value} for number, value in enumerate(VALUES[kind])]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows, indent=1) if layout == "array" else "\n".join(map(json.dumps, rows)))
    prepare.main(["--input", str(path), "--output", str(tmp_path / "out"), "--validation", "0"])
    prepared = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    asked = load_file(str(path)).questions
    assert [(row["question"], row["label"]) for row in prepared] == [(each.question, each.gold) for each in asked]
    known = [
        text
        for value, text in [*READ, (["1", "2"], "1, 2")]
        if value in VALUES[kind] and not isinstance(value, Decimal)
    ]
    assert sorted(row["label"] for row in prepared) == sorted(known)
