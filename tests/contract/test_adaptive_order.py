"""--data.order adaptive through upstream's data set, its samples generator and its checkpointed loader state."""

import pickle
import random
from types import SimpleNamespace

import datasets
import numpy as np
import pytest

from openrlhf_ebpo.record.resume import CheckpointError
from openrlhf_ebpo.training.adaptive_prompts import INFO_KEY, AdaptivePrompts
from openrlhf_ebpo.training.prompts import check_same_order

ROWS, BATCH, GROUP = 40, 8, 4


def passes(label: str) -> float:
    """How likely: prompts whose number ends on 0 to 4 never pass."""
    return 0.5 * (int(label) % 10 > 4)


class Rollouts:
    """Upstream's samples generator on our data loader; rewards come by `passes` instead of vLLM."""

    def __init__(self, args, rows, rename=lambda prompt: prompt):
        from openrlhf.datasets import PromptDataset
        from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
        from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

        strategy = DeepspeedStrategy.__new__(DeepspeedStrategy)
        strategy.args, strategy.is_rank_0 = args, lambda: False
        prompts = PromptDataset(datasets.Dataset.from_list(rows), SimpleNamespace(), strategy)
        self.loader = strategy.setup_dataloader(prompts, 1, True, True, prompts.collate_fn, num_workers=0)
        self.generator = SamplesGenerator(strategy, self.loader, [], None, [])
        self.generator._generate_vllm = self._generate
        self.rename = rename

    def _generate(self, dataloader_iter, num_prompts, **_):
        from openrlhf.trainer.ppo_utils.samples_generator import _collect_prompt_batch

        prompts, labels, _, exhausted = _collect_prompt_batch(dataloader_iter, num_prompts)
        samples = []
        for prompt, label in reversed(list(zip(prompts, labels, strict=True))):  # as they finish
            for answer in range(GROUP):
                chance = random.Random(f"{label} {answer} {self.loader._draws}").random()
                response = {
                    "prompt": self.rename(prompt),
                    "label": label,
                    "observation_tokens": [1, 2, 3],
                    "action_ranges": [(1, 3)],
                    "rollout_log_probs": None,
                    "scores": None,
                    "reward": float(chance < passes(label)),
                }
                samples.append(self.generator._process_response_into_experience(response, max_len=8))
        return samples, len(prompts), exhausted

    def batch(self) -> tuple[list[str], list[float], bool]:
        """Labels and importance of the next batch's prompts, and whether the episode is over."""
        samples, _, _, exhausted = self.generator.generate_samples()
        return (
            [sample.labels[0] for sample in samples[::GROUP]],
            [sample.info[INFO_KEY][0] for sample in samples[::GROUP]],
            exhausted,
        )


@pytest.fixture
def args(prompt_args):
    return prompt_args(BATCH, GROUP, **{"data.order": "adaptive"})


def rows(count: int = ROWS) -> list[dict]:
    return [{"q": f"prompt {i}", "a": str(i), "cluster": i % 2} for i in range(count)]


def story(rollouts: Rollouts, batches: int) -> list[tuple[list[str], list[float]]]:
    found = []
    while len(found) < batches:
        labels, importance, _ = rollouts.batch()
        if labels:  # an episode that ends with a full batch is found out one call later
            found.append((labels, importance))
    return found


def test_an_episode_has_as_many_full_batches_as_the_data_set_fills(args):
    rollouts = Rollouts(args, rows(43))
    assert isinstance(rollouts.loader, AdaptivePrompts) and len(rollouts.loader) == 40
    episode = [rollouts.batch() for _ in range(6)]
    assert [len(labels) for labels, _, _ in episode] == [8] * 5 + [0]
    assert [exhausted for *_, exhausted in episode] == [False] * 5 + [True]
    assert all(len(set(labels)) == 8 for labels, _, _ in episode[:5])
    assert len(rollouts.batch()[0]) == 8  # the next episode


def test_two_episodes_draw_every_prompt_and_those_that_can_teach_more_often(args):
    rollouts = Rollouts(args, rows())
    counts = dict.fromkeys(map(str, range(ROWS)), 0)
    for epoch in range(6):
        labels = [label for drawn, _ in story(rollouts, 10) for label in drawn]
        assert set(labels) == set(counts), epoch
        for label in labels:
            counts[label] += 1
    useful = sum(count for label, count in counts.items() if passes(label))
    assert useful > 0.58 * sum(counts.values())


def test_samples_carry_how_much_they_count_for_all_prompts(args):
    found = story(Rollouts(args, rows()), 200)
    importance = np.array([count for _, counts in found for count in counts])
    rates = np.array([passes(label) for labels, _ in found for label in labels])
    assert importance.mean() == pytest.approx(1, rel=0.03)
    assert np.average(rates, weights=importance) == pytest.approx(0.25, rel=0.03)
    assert rates.mean() > 0.3


@pytest.mark.parametrize("stop", [0, 3, 5, 7, 10, 14])
def test_a_resumed_run_draws_what_the_other_would_have(args, stop):
    """Also where an episode (5 batches) or an epoch (10) ends. The state goes through a checkpoint's pickle."""
    whole = story(Rollouts(args, rows()), 24)
    first = Rollouts(args, rows())
    head = story(first, stop)
    saved = pickle.loads(pickle.dumps(first.loader.state_dict()))
    first.batch()  # what is drawn after the checkpoint was saved counts as not drawn
    second = Rollouts(args, rows())
    second.loader.load_state_dict(saved)
    assert head + story(second, 24 - stop) == whole


def test_at_the_end_of_an_episode_a_resume_does_not_repeat_it(args):
    first = Rollouts(args, rows())
    story(first, 5)
    second = Rollouts(args, rows())
    second.loader.load_state_dict(first.loader.state_dict())
    assert second.batch() == ([], [], True)  # upstream goes on with the next episode
    assert len(second.batch()[0]) == BATCH


def test_a_data_set_smaller_than_a_batch_is_drawn_whole(args):
    rollouts = Rollouts(args, rows(5))
    for _ in range(3):
        labels, importance, exhausted = rollouts.batch()
        assert sorted(labels) == list("01234") and importance == [1.0] * 5 and exhausted


def test_what_is_left_out_of_training_counts_as_not_drawn(args):
    args.actor.num_gpus_per_node = 2
    rollouts = Rollouts(args, rows(5))  # 10 responses, and an optimizer step needs 16
    assert rollouts.batch()[0] == []
    assert not rollouts.loader.state.drawn.any()


def test_a_row_that_is_there_several_times_is_one_prompt(args):
    rollouts = Rollouts(args, [*rows(8), *rows(8)])
    assert len(rollouts.loader) == 16
    for labels, importance in story(rollouts, 4):
        assert sorted(labels) == list("01234567") and importance == [1.0] * 8


def test_prompts_may_be_added_and_removed_at_a_resume(args):
    first = Rollouts(args, rows())
    story(first, 9)
    saved = first.loader.state_dict()
    second = Rollouts(args, rows(60)[10:])
    second.loader.load_state_dict(saved)
    assert second.loader.state.successes[:30].tolist() == saved["successes"][10:].tolist()
    assert not second.loader.state.successes[30:].any() and not second.loader.state.drawn[30:].any()
    missing = {str(i) for i in range(40, 60)}
    assert missing <= {label for labels, _ in story(second, 4) for label in labels}


def test_failed_rewards_are_no_failures_of_the_prompt(args):
    rollouts = Rollouts(args, rows(8))
    samples, *_ = rollouts.generator.generate_samples()
    before = rollouts.loader.state
    for sample in samples:
        sample.rewards.fill_(float("nan"))
    samples[0].rewards.fill_(1.0)
    rollouts.loader.observe(samples)
    after = rollouts.loader.state
    changed = np.flatnonzero(after.failures != before.failures).tolist() or np.flatnonzero(
        after.successes != before.successes
    )
    assert len(changed) == 1
    assert after.successes[changed] == 0.5 * before.successes[changed] + 1
    assert after.failures[changed] == 0.5 * before.failures[changed]


@pytest.mark.parametrize(("reward", "expected"), [(-1.0, 0.0), (0.0, 0.5), (1.0, 1.0), (3.0, 1.0), (-7.0, 0.0)])
def test_rewards_are_measured_from_fail_to_pass(args, reward, expected):
    args.algo.advantage.ebpo.fail_reward = -1.0
    loader = Rollouts(args, rows(8)).loader
    assert loader._success(SimpleNamespace(rewards=reward)) == expected


def test_an_agent_that_changes_its_prompt_is_an_error(args):
    rollouts = Rollouts(args, rows(), rename=lambda prompt: f"{prompt}!")
    with pytest.raises(RuntimeError, match=r"8 prompts came back that were not drawn.*--data.order shuffle"):
        rollouts.batch()


def test_a_checkpoint_of_another_order_is_refused(args):
    saved = {"data_loader_state_dict": Rollouts(args, rows()).loader.state_dict()}
    check_same_order(saved, "adaptive")
    check_same_order({"data_loader_state_dict": {}}, "adaptive")
    with pytest.raises(CheckpointError, match=r"--data.order is as_is, and was adaptive"):
        check_same_order(saved, "as_is")
    with pytest.raises(CheckpointError, match=r"--data.order is adaptive, and was shuffle or as_is"):
        check_same_order({"data_loader_state_dict": {"_num_yielded": 3}}, "adaptive")


def test_evaluation_prompts_are_not_chosen(args):
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

    strategy = DeepspeedStrategy.__new__(DeepspeedStrategy)
    strategy.args = args
    loader = strategy.setup_dataloader(list(range(5)), 1, False, False)
    assert [int(batch) for batch in loader] == [0, 1, 2, 3, 4]
