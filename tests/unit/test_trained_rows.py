"""A resumed run trains on the rows that it was trained on, or stops before Ray and says what differs."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from checkpoints import save_checkpoint
from commands import write_rows
from datasets import Dataset

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.resume import CheckpointError, groups, newest_complete
from openrlhf_ebpo.train.trained_rows import identify_rows, identity
from openrlhf_ebpo.upstream.install import install

install()  # before anything imports OpenRLHF's data sets
ROWS = [{"q": f"{i} + {i} =", "a": str(2 * i), "topic": "sums"} for i in range(96)]
OTHER = [{"q": f"{i} - {i} =", "a": "0", "topic": "differences"} for i in range(200)]


@pytest.fixture
def resumed(tmp_path):
    """Resume, with these rows and flags, a run that was saved with ROWS; returns the identity of the rows."""

    def build(rows=ROWS, name="train.jsonl", probs=None, seed=1, more=(), **data):
        path = write_rows(tmp_path / name, rows)
        values = {"input_key": "q", "label_key": "a", "image_key": "images", "prompt_split": "train"}
        values |= {"max_samples": 10**8, "prompt_dataset": ",".join(map(str, [path, *more])), "prompt_probs": probs}
        args = SimpleNamespace(
            data=SimpleNamespace(**{**values, **data}), train=SimpleNamespace(seed=seed), use_ms=False
        )
        return args

    def resume(*args, saved=None, **flags):
        if not (tmp_path / "ckpt").exists():
            save_checkpoint(tmp_path / "ckpt", 4, data=identify_rows(build(**(saved or {})), None))
        found = newest_complete(groups(tmp_path / "ckpt", "ebpo"))
        return identify_rows(build(*args, **flags), found)

    return resume


@pytest.mark.parametrize(
    ("rows", "differ"),
    [
        ([*ROWS, OTHER[0]], r"96 rows then, 97 now, of which the first 96 are the same.*--data\.max_samples 96 leaves"),
        ([*ROWS, *OTHER[:32]], r"96 rows then, 128 now, of which the first 96 are the same"),
        (OTHER, r"96 rows then, 200 now\. "),
        (ROWS[:60], "96 rows then, 60 now"),
        (ROWS[:20], "96 rows then, 20 now"),
        (ROWS[:48], "96 rows then, 48 now"),
        ([*ROWS[:95], OTHER[0]], "96 rows, not the same ones"),
        (ROWS[::-1], "96 rows, not the same ones"),
        ([{**row, "a": "?"} for row in ROWS], "96 rows, not the same ones"),
    ],
)
def test_other_rows_are_refused_with_the_ways_out(rows, differ, resumed, tmp_path):
    with pytest.raises(CheckpointError, match=differ) as refusal:
        resumed(rows)
    assert f"--algo.advantage.ebpo.init_prior {tmp_path}/ckpt/_actor/global_step4/prior.json" in str(refusal.value)
    assert str(refusal.value).startswith(f"--data.prompt_dataset {tmp_path}/train.jsonl is not what global_step4")


def test_the_same_rows_resume_whatever_else_has_changed(resumed, tmp_path):
    assert resumed()["rows"] == 96
    resumed([{"topic": "x", "q": row["q"], "a": row["a"]} for row in ROWS], name="moved.jsonl")
    resumed([*ROWS, *OTHER], max_samples=96)
    Dataset.from_list(ROWS).to_parquet(tmp_path / "rows.parquet")
    resumed(prompt_dataset=str(tmp_path / "rows.parquet"))


def test_flags_that_choose_other_rows_are_refused(resumed):
    for flags in ({"max_samples": 50}, {"label_key": None}, {"input_key": "topic"}):
        with pytest.raises(CheckpointError, match="is not what global_step4 was trained on"):
            resumed(**flags)


def test_another_seed_is_refused_only_where_it_draws_other_rows(resumed, tmp_path):
    resumed(seed=2)
    mixed = {"probs": "0.5,0.5", "more": [write_rows(tmp_path / "other.jsonl", OTHER)]}
    (tmp_path / "ckpt").rename(tmp_path / "before")
    resumed(saved={**mixed, "seed": 1}, **mixed, seed=1)
    with pytest.raises(CheckpointError, match=r"--data\.prompt_probs and --train\.seed"):
        resumed(**mixed, seed=3)


def test_a_checkpoint_without_an_identity_is_not_compared(resumed, tmp_path):
    resumed()
    manifest.complete(tmp_path / "ckpt" / "_actor" / "global_step4")
    resumed(OTHER)


def test_a_data_set_that_cannot_be_read_is_an_error_of_one_line(resumed, tmp_path):
    with pytest.raises(UsageError, match=r"--data.prompt_dataset .*missing\.json cannot be read") as error:
        resumed(prompt_dataset=str(tmp_path / "missing.json"))
    assert "\n" not in str(error.value)


def test_a_hash_is_of_the_values_and_not_of_their_chunks():
    texts = ["", None, "a", "bc", "a\n"] * 30
    whole = {"q": pa.array(texts), "chat": pa.array([[{"role": "user", "content": text}] for text in texts])}
    cut = {name: pa.chunked_array([values[:7], values[7:100], values[100:]]) for name, values in whole.items()}
    assert identity(Dataset(pa.table(whole))) == identity(Dataset(pa.table(cut)))
    rows = [identity(Dataset(pa.table({"q": q}))) for q in (["a", "bc"], ["ab", "c"], ["abc", ""], ["abc", None])]
    rows += [identity(Dataset(pa.table({"q": q}))) for q in ([[1], [2]], [[1, 2], []], [["1"], ["2"]], [12, 3])]
    assert len({row["sha256"] for row in rows}) == len(rows)
