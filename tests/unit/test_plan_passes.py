"""Steps that a pass makes: the arithmetic against what training keeps of each batch, and the sentence that run.sh
prints."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from properties import given, st

from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.train import plan


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [(16_900, 33), (17_400, 34), (16_896, 33), (17_023, 33), (17_024, 34), (512, 1), (127, 0), (0, 0)],
)
def test_steps_of_the_papers_batches(prompts, expected):
    assert plan.steps_a_pass(prompts, batch=512, group=4, train_batch=512) == expected


@pytest.mark.parametrize(("ranks", "dynamic", "kept"), [(2, False, 12), (2, True, 12), (1, True, 12), (1, False, 20)])
def test_what_is_kept_is_whole_groups_in_whole_optimizer_steps(ranks, dynamic, kept):
    assert BatchSettings(5, 4, 6, ranks=ranks, dynamic=dynamic).trainable(20) == kept


@given(prompts=st.integers(0, 2000), batch=st.integers(1, 64), group=st.integers(2, 8), mini=st.integers(1, 64))
def test_as_many_steps_as_batches_with_something_to_train_on(prompts, batch, group, mini):
    mini = min(mini, batch)  # a batch holds an optimizer step at least: the launcher refuses others
    settings = BatchSettings(batch, group, mini * group, ranks=2, dynamic=True)
    sizes = [min(batch, prompts - start) * group for start in range(0, prompts, batch)]
    kept = [settings.trainable(size) for size in sizes]
    assert plan.steps_a_pass(prompts, batch, group, mini * group) == sum(size > 0 for size in kept)
    rest = sizes[-1] - kept[-1] if sizes and sizes[-1] < batch * group else 0
    assert plan.left_out(prompts, batch, group, mini * group) == rest / group


def test_the_sentence_is_of_the_file(tmp_path, capsys):
    file = tmp_path / "train.parquet"
    pq.write_table(pa.table({"id": [str(i) for i in range(1100)]}), file)
    plan.main([str(file), "30", "512", "4", "512"])
    said = "2 steps a pass over 1,100 prompts, 76 of which fill no optimizer step; 60 in 30 passes"
    assert capsys.readouterr().out == f"{said}\n"
    plan.main([str(file), "30", "512", "4", "512", "filtered"])
    assert capsys.readouterr().out == f"{said}, less what is filtered out\n"
    plan.main(["owner/name", "30", "512", "4", "512"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("number", ["abc", "-1", "0", "4.5", ""])
def test_what_only_the_training_can_judge_is_left_to_it(number, tmp_path, capsys):
    file = tmp_path / "train.parquet"
    pq.write_table(pa.table({"id": ["1"]}), file)
    for place in range(4):
        words = ["30", "512", "4", "512"]
        words[place] = number
        plan.main([str(file), *words])
    plan.main([f"{file},{file}", "30", "512", "4", "512"])
    assert capsys.readouterr().out == ""
