"""policy/kl_per_step on upstream's own replay buffer."""

from types import SimpleNamespace

import pytest
import torch

from openrlhf_ebpo.upstream.policy.policy_metrics import PolicyMetrics, kl_responses

TOKENS, ACTIONS, SHIFT = 6, 4, 0.1


class Actor:
    """Gives every token a log-probability that is higher by SHIFT; remembers how many responses came at a time."""

    def __init__(self):
        self.batches = []

    def __call__(self, sequences, action_mask, attention_mask):
        self.batches.append(len(sequences))
        return torch.full(action_mask.shape, SHIFT - 1.0)

    def eval(self):
        pass

    train = eval


def buffer_of(responses: int, micro_batch_size: int, dynamic: bool):
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

    buffer = NaiveReplayBuffer(micro_batch_size, dynamic_batch=dynamic)
    buffer.append(
        Experience(
            sequences=torch.ones(responses, TOKENS, dtype=torch.long),
            attention_mask=torch.ones(responses, TOKENS, dtype=torch.long),
            action_mask=torch.ones(responses, ACTIONS, dtype=torch.long),
            action_log_probs=torch.full((responses, ACTIONS), -1.0),
            total_length=torch.full((responses,), float(TOKENS)),
        )
    )
    return buffer


def step_kl(buffer, args) -> tuple[list[int], list[float]]:
    actor = Actor()
    trainer = SimpleNamespace(
        replay_buffer=buffer,
        micro_train_batch_size=buffer.sample_batch_size,
        strategy=SimpleNamespace(all_reduce=lambda value, op: value),
        actor=actor,
        args=args,
    )
    if buffer.dynamic_batch:
        buffer.setup_dynamic_batch(
            SimpleNamespace(
                args=args,
                ds_device_mesh={"dp": SimpleNamespace(get_group=lambda: None)},
                all_reduce=lambda value, op: value,
            )
        )
    return actor.batches, PolicyMetrics._step_kl(trainer).tolist()


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("micro_batch_size", "dynamic", "at_a_time"),
    [(1, False, [1] * 4), (3, False, [3, 3, 2]), (8, True, [1] * 4)],  # 8 responses at once would not have fitted
)
def test_no_more_responses_at_a_time_than_in_training(sections, one_rank, micro_batch_size, dynamic, at_a_time):
    args = sections(
        **{
            "ds.packing_samples": dynamic,
            "ds.ring_attn_size": 1,
            "ds.tensor_parallel_size": 1,
            "train.batch_size": 8,
            "train.max_tokens_per_gpu": 2 * TOKENS,
            "rollout.batch_size": 4,
            "rollout.n_samples_per_prompt": 4,
        }
    )
    batches, (total, tokens) = step_kl(buffer_of(16, micro_batch_size, dynamic), args)
    assert batches == at_a_time
    assert tokens == sum(at_a_time) * ACTIONS
    assert total / tokens == pytest.approx(torch.tensor(SHIFT).double().expm1().item() - SHIFT, rel=1e-5)


@pytest.mark.parametrize(
    ("responses", "micro_batch_size", "chosen"),
    [(0, 4, 0), (3, 4, 3), (32, 32, 8), (128, 32, 8), (1024, 32, 64), (1024, 4, 16), (8192, 1, 4)],
)
def test_a_step_spends_little_on_its_kl(responses, micro_batch_size, chosen):
    assert kl_responses(responses, micro_batch_size) == chosen
