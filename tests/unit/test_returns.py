"""Values spread over tokens, against a walk over tokens."""

import pytest
import torch

from openrlhf_ebpo.upstream.controller.experience_maker import token_returns

MASKS = torch.tensor(
    [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0],
        [0, 1, 1, 0, 1, 0],  # a gap: an environment's turn between two actions
        [0, 0, 0, 0, 0, 1],
        [1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
)
VALUES = torch.tensor([1.5, -0.25, 2.0, -3.0, 0.0, 0.0])


def walk(value: float, mask: list[int], kl: list[float] | None, coefficient: float) -> tuple[list[float], float]:
    """Upstream's undiscounted return, one token after the other."""
    end = max((t for t, action in enumerate(mask) if action), default=len(mask) - 1)
    rewards = [-coefficient * k for k in kl] if kl else [0.0] * len(mask)
    rewards[end] += value
    returns, still_to_come = [], 0.0
    for t in reversed(range(len(mask))):
        still_to_come += rewards[t] * mask[t]
        returns.insert(0, still_to_come)
    return returns, sum(rewards)


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_without_kl_every_token_up_to_the_last_action_gets_the_value_to_the_last_bit(dtype):
    returns, totals = token_returns(VALUES.double(), MASKS.to(dtype))
    expected = [walk(v, m, None, 0.0)[0] for v, m in zip(VALUES.tolist(), MASKS.tolist(), strict=True)]
    assert returns.tolist() == expected
    assert torch.equal(totals, VALUES)
    assert returns.dtype == torch.float32
    assert returns.is_contiguous()


@pytest.mark.parametrize("coefficient", [0.001, 0.5])
def test_with_kl_the_return_is_the_walk_over_tokens(coefficient):
    kl = torch.randn(MASKS.shape, generator=torch.Generator().manual_seed(0))
    before = kl.clone()
    returns, totals = token_returns(VALUES, MASKS, kl, coefficient)
    rows = zip(VALUES.tolist(), MASKS.tolist(), kl.tolist(), strict=True)
    expected, sums = zip(*(walk(*row, coefficient) for row in rows), strict=True)
    torch.testing.assert_close(returns, torch.tensor(expected), rtol=0, atol=1e-6)
    torch.testing.assert_close(totals, torch.tensor(sums), rtol=0, atol=1e-6)
    assert torch.equal(kl, before)
    assert returns.dtype == torch.float32


def test_returns_share_no_memory_with_what_went_in():
    kl = torch.zeros(MASKS.shape)
    for returns, _ in (token_returns(VALUES, MASKS), token_returns(VALUES, MASKS, kl, 0.1)):
        returns.fill_(7.0)
        assert VALUES[0] == 1.5
        assert not kl.any()
