"""Steps that a pass makes, and the plan of a training, against what training keeps of each batch."""

import pytest
from properties import given, st

from openrlhf_ebpo.command import nested
from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.train.plan import plan_lines


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [(16_900, 33), (17_400, 34), (16_896, 33), (17_023, 33), (17_024, 34), (512, 1), (127, 0), (0, 0)],
)
def test_steps_of_the_papers_batches(prompts, expected):
    assert BatchSettings(512, 4, 512, ranks=8).steps_a_pass(prompts) == expected


@pytest.mark.parametrize(("ranks", "dynamic", "kept"), [(2, False, 12), (2, True, 12), (1, True, 12), (1, False, 20)])
def test_what_is_kept_is_whole_groups_in_whole_optimizer_steps(ranks, dynamic, kept):
    assert BatchSettings(5, 4, 6, ranks=ranks, dynamic=dynamic).trainable(20) == kept


@given(prompts=st.integers(0, 2000), batch=st.integers(1, 64), group=st.integers(2, 8), mini=st.integers(1, 64))
def test_as_many_steps_as_batches_with_something_to_train_on(prompts, batch, group, mini):
    mini = min(mini, batch)  # a batch holds an optimizer step at least: the start refuses others
    settings = BatchSettings(batch, group, mini * group, ranks=2, dynamic=True)
    sizes = [min(batch, prompts - start) * group for start in range(0, prompts, batch)]
    assert settings.steps_a_pass(prompts) == sum(settings.trainable(size) > 0 for size in sizes)


def test_the_plan_counts_what_is_left_out_of_every_pass():
    never, model = {"eval.steps": -1, "ckpt.save_steps": -1}, {"ds.lora.rank": 8, "actor.model_name_or_path": "m"}
    ckpt = {"ckpt.save_hf": False, "ckpt.disable_ds": False, "ckpt.max_num": 3}
    rollouts = {"logger.rollouts_every": 10, "rollout.max_new_tokens": None, "data.max_len": 4060}
    flags = {"train.num_episodes": 30, "algo.dynamic_filtering_enable": False, **never, **model, **ckpt, **rollouts}
    lines = "\n".join(plan_lines(nested(flags), BatchSettings(512, 4, 512, ranks=8), 1100))
    assert "1,100 in the data set, 512 a step; the last 76 of a pass fill no optimizer step" in lines
    assert "60 in 30 episodes" in lines and "76.68 MB, 12.78 MB a logged step" in lines
    assert "none before the end; the end exports one" in lines
