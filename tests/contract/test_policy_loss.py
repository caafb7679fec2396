"""Clip-Cov and KL-Cov over upstream's own PolicyLoss, and inside its ActorPPOTrainer."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from openrlhf_ebpo.command import parse
from openrlhf_ebpo.train.flags import build_parser
from openrlhf_ebpo.train.upstream_main import UpstreamMain
from openrlhf_ebpo.upstream.policy.policy_loss import CovarianceLoss, with_covariance

PPO = "openrlhf.cli.train_ppo_ray"
WHOLE = {"dp_size": 2, "batch_num_tokens": torch.tensor(61.0), "global_batch_size": torch.tensor(7.0)}


def batch(rows=6, length=25, dtype=torch.float32):
    """log π, log π_old, A, mask and the rollout's log-probabilities; row 1 is excluded."""
    generator = torch.Generator().manual_seed(3)
    log_probs = torch.randn(rows, length, generator=generator).abs().neg().mul(2)
    old, rollout = log_probs + 0.4 * torch.randn(2, rows, length, generator=generator)
    advantages = 2 * torch.randn(rows, 1, generator=generator).expand(rows, length).clone()
    mask = torch.rand(rows, length, generator=generator) > 0.3
    mask[1] = False
    return (*(x.to(dtype) for x in (log_probs, old, advantages)), mask, rollout.to(dtype))


@pytest.fixture
def build(sections):
    """(upstream's loss, the loss that the trainer uses) of a type."""
    from openrlhf.models import PolicyLoss

    def loss(loss_type, ratio=0.1, coef=1.0, bounds=(0.1, 4.0), seed=0, **settings):
        flat = {"actor.policy_loss_type": loss_type, "train.seed": seed, "actor.clip_cov.ratio": ratio}
        flat |= {"actor.clip_cov.bounds": list(bounds), "actor.kl_cov.ratio": ratio, "actor.kl_cov.coef": coef}
        flat |= {"actor.dual_clip": None}
        ours = with_covariance(PolicyLoss(policy_loss_type=loss_type, **settings), sections(**flat).actor, seed)
        return PolicyLoss(**settings), ours

    return loss


def results(loss, data, **kwargs):
    """Return the results of the loss, and the gradient of the first."""
    log_probs, old, advantages, mask, rollout = data
    log_probs = log_probs.clone().requires_grad_()
    found = loss(log_probs, old, advantages, action_mask=mask, rollout_log_probs=rollout, **kwargs)
    found[0].backward()
    return found, log_probs.grad


def slow_loss(data, chosen, loss_type, *, coef, token_level, dual_clip, correction, whole):
    """The paper's losses in plain Python: (loss, gradient by token), aggregated as upstream documents it."""
    log_probs, old, advantages, mask, rollout = ([[x.item() for x in row] for row in tensor] for tensor in data)
    counts = [sum(row) for row in mask]
    total, gradient = 0.0, {}
    for b, t in itertools.product(range(len(mask)), range(len(mask[0]))):
        if not mask[b][t]:
            continue
        delta, a = log_probs[b][t] - old[b][t], advantages[b][t]
        r = math.exp(delta)
        value, slope = -r * a, -r * a
        if loss_type == "kl_cov":
            if chosen[b][t]:
                value, slope = value + coef * abs(delta), slope + coef * math.copysign(1, delta)
        else:
            if (a > 0 and r > 1.2) or (a < 0 and r < 0.8):
                value, slope = -min(max(r, 0.8), 1.2) * a, 0.0
            if dual_clip and a < 0 and r > dual_clip:
                value, slope = -dual_clip * a, 0.0
            if chosen[b][t]:
                value, slope = 0.0, 0.0
        weight = 1.0
        if correction:
            weight = math.exp(old[b][t] - rollout[b][t])
            weight = weight if 0.5 <= weight <= 1.5 else 0.0
        if token_level:
            weight *= 2 / 61 if whole else 1 / sum(counts)
        else:
            weight *= (2 / 7 if whole else 1 / sum(count > 0 for count in counts)) / counts[b]
        total += weight * value
        gradient[b, t] = weight * slope
    return total, gradient


@pytest.mark.parametrize(("loss_type", "dual_clip"), [("clip_cov", None), ("clip_cov", 1.3), ("kl_cov", None)])
@pytest.mark.parametrize("token_level", [True, False])
@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_the_loss_is_the_papers_in_value_and_gradient(build, loss_type, token_level, correction, whole, dual_clip):
    settings = {"token_level_loss": token_level, "dual_clip": dual_clip}
    if correction:
        settings |= {"is_correction_level": "token", "is_correction_threshold": [0.5, 1.5]}
    _, ours = build(loss_type, **settings)
    chosen = {}
    inner = ours.change
    ours.change = lambda *args: chosen.setdefault("it", inner(*args))
    data = batch()
    found, gradient = results(ours, data, **(WHOLE if whole else {}))
    selected = chosen["it"][1]
    assert 3 < selected.sum() <= 0.1 * data[3].sum()
    expected, slopes = slow_loss(
        data,
        selected.tolist(),
        loss_type,
        coef=1.0,
        token_level=token_level,
        dual_clip=dual_clip,
        correction=correction,
        whole=whole,
    )
    assert found[0].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    for place, slope in slopes.items():
        assert gradient[place].item() == pytest.approx(slope, rel=1e-4, abs=1e-6)
    assert (gradient[~data[3]] == 0).all()
    if loss_type == "clip_cov":
        assert (gradient[selected] == 0).all()
    assert ours.measured["policy/cov_selected_fraction"].item() == pytest.approx(
        (selected.sum() / data[3].sum()).item()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("level", ["off", "token", "seq"])
@pytest.mark.parametrize("token_level", [True, False])
def test_with_nothing_to_take_out_clip_cov_is_upstreams_ppo_bit_for_bit(build, dtype, level, token_level):
    settings = {"token_level_loss": token_level, "is_correction_level": level, "dual_clip": 2.0, "clip_eps_high": 0.28}
    for nothing in ({"ratio": 0.0}, {"bounds": (1e6, 1e7)}):
        upstreams, ours = build("clip_cov", **nothing, **settings)
        (theirs, slope), (found, our_slope) = results(upstreams, batch(dtype=dtype)), results(ours, batch(dtype=dtype))
        assert torch.equal(our_slope, slope)
        assert [x is None for x in found] == [x is None for x in theirs]
        assert all(torch.equal(x, y) for x, y in zip(found, theirs, strict=True) if y is not None)


@pytest.mark.parametrize("nothing", [{"ratio": 0.0}, {"coef": 0.0}], ids=str)
def test_without_penalty_kl_cov_is_upstreams_loss_with_a_clip_range_that_never_binds(build, nothing):
    _, ours = build("kl_cov", **nothing)
    unclipped, _ = build("ppo", clip_eps_low=1e9, clip_eps_high=1e9)
    (theirs, slope), (found, our_slope) = results(unclipped, batch()), results(ours, batch())
    assert torch.equal(found[0], theirs[0])
    assert torch.equal(our_slope, slope)
    assert found[1].item() == 0.0  # nothing is clipped
    assert torch.equal(found[2], theirs[2])


def test_what_upstream_reports_stays_what_it_reports_for_ppo(build):
    settings = {"is_correction_level": "token"}
    upstreams, ours = build("clip_cov", **settings)
    theirs, found = results(upstreams, batch())[0], results(ours, batch())[0]
    assert found[0] != theirs[0]
    assert all(map(torch.equal, found[1:], theirs[1:]))


@pytest.mark.parametrize("loss_type", ["clip_cov", "kl_cov"])
@pytest.mark.parametrize("token_level", [True, False])
def test_without_a_token_or_an_advantage_the_loss_is_finite(build, loss_type, token_level):
    log_probs, old, advantages, mask, rollout = batch()
    without_token = (log_probs, old, advantages, torch.zeros_like(mask), rollout)
    without_advantage = (log_probs, old, 0 * advantages, mask, rollout)
    for data in (without_token, without_advantage):
        _, ours = build(loss_type, token_level_loss=token_level)
        found, gradient = results(ours, data, **WHOLE)
        assert found[0].isfinite()
        assert gradient.isfinite().all()
        assert all(value.isfinite() for value in ours.measured.values())
        assert loss_type == "kl_cov" or (found[0] == 0 and (gradient == 0).all())


# --- inside upstream's trainer


class Policy(torch.nn.Module):
    """The least that upstream's training step calls a model: log-probabilities of the response's tokens."""

    def __init__(self, vocabulary=20):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.nn.Parameter(torch.randn(vocabulary, vocabulary, generator=generator))
        self.model = SimpleNamespace(
            module=torch.nn.ParameterList([self.logits]), skipped_steps=0
        )  # DeepSpeed's engine

    def forward(self, sequences, action_mask, attention_mask=None, **kwargs):
        log_probs = self.logits.log_softmax(-1)[sequences[:, :-1], sequences[:, 1:]]
        return log_probs[:, -action_mask.shape[1] :], SimpleNamespace()


@pytest.fixture
def one_process():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def make_trainer(one_process):
    """The patched ActorPPOTrainer, with the arguments of a command line and plain SGD for a strategy."""
    from openrlhf.trainer.ray import ppo_actor

    def build(*argv):
        command = UpstreamMain(PPO)
        parser = build_parser(command)
        flat = parse(parser, ["--actor.model_name_or_path", "m", "--reward.remote_url", "r.py", *argv])
        args = command.validate(flat)
        args.logger.no_policy_metrics = True
        policy = Policy()
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)

        def optimizer_step(optim, *args, **kwargs):
            optim.step()
            optim.zero_grad()

        strategy = SimpleNamespace(
            args=args,
            ring_attn_group=None,
            accumulated_gradient=1,
            is_rank_0=lambda: False,
            all_reduce=lambda data, op="mean": data,
            backward=lambda loss, model, optim: loss.backward(),
            optimizer_step=optimizer_step,
            get_grad_norm=lambda model: 0.0,
        )
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        options = {"micro_train_batch_size": 4, "dataloader_pin_memory": False}
        return ppo_actor.ActorPPOTrainer(strategy, policy, None, optimizer, scheduler, **options)

    return build


def experience(policy, rows=16, length=30):
    from openrlhf.trainer.ppo_utils.experience import Experience

    generator = torch.Generator().manual_seed(1)
    sequences = torch.randint(0, 20, (rows, length + 1), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.bool)
    with torch.no_grad():
        log_probs, _ = policy(sequences, mask)
    return Experience(
        index=list(range(rows)),
        sequences=sequences,
        attention_mask=torch.ones_like(sequences),
        action_mask=mask,
        action_log_probs=log_probs,
        advantages=2 * torch.randn(rows, 1, generator=generator).expand(rows, length).clone(),
        info={"reward": torch.ones(rows)},
    )


def trained(trainer) -> tuple[dict, torch.Tensor]:
    """A complete ppo_train of upstream's: its status, and the weights after it."""
    torch.manual_seed(0)  # upstream shuffles
    trainer.replay_buffer.append(experience(trainer.actor))
    status = trainer.ppo_train(0.0)
    return status, trainer.actor.logits.detach().clone()


def test_the_flags_reach_the_loss_of_the_trainer(make_trainer):
    argv = ("--actor.clip_cov.ratio", "0.25", "--actor.clip_cov.bounds", "0.5", "9", "--train.seed", "7")
    loss = make_trainer("--actor.policy_loss_type", "clip_cov", "--actor.eps_clip_low_high", "0.1", "0.3", *argv)
    loss = loss.actor_loss_fn
    assert isinstance(loss, CovarianceLoss)
    settings = loss.change.keywords
    assert settings.pop("generator").initial_seed() == 7
    assert settings == {"ratio": 0.25, "bounds": (0.5, 9.0), "eps_clip": (0.1, 0.3)}
    argv = ("--actor.kl_cov.ratio", "0.125", "--actor.kl_cov.coef", "3")
    loss = make_trainer("--actor.policy_loss_type", "kl_cov", *argv).actor_loss_fn
    assert loss.change.keywords == {"ratio": 0.125, "coef": 3.0}


@pytest.mark.parametrize("loss_type", ["ppo", "gspo"])
def test_upstreams_types_run_upstreams_own_loss(make_trainer, loss_type):
    from openrlhf.models import PolicyLoss

    trainer = make_trainer("--actor.policy_loss_type", loss_type)
    assert type(trainer.actor_loss_fn) is PolicyLoss
    assert trainer.actor_loss_fn.policy_loss_type == loss_type
    status, _ = trained(trainer)
    assert not [name for name in status if name.startswith("policy/cov")]


@pytest.mark.parametrize("loss_type", ["clip_cov", "kl_cov"])
def test_a_whole_step_of_the_trainer_reports_what_was_chosen(make_trainer, loss_type):
    argv = ("--actor.clip_cov.bounds", "0.01", "100", f"--actor.{loss_type}.ratio", "0.1")
    status, weights = trained(make_trainer("--actor.policy_loss_type", loss_type, *argv))
    assert status["policy/cov_selected_fraction"] == pytest.approx(12 / 120)  # of each micro-batch of 4 x 30
    assert math.isfinite(status["policy/cov_mean"])
    again, same = trained(make_trainer("--actor.policy_loss_type", loss_type, *argv))
    assert torch.equal(weights, same)
    assert again == status
    _, plain = trained(make_trainer("--actor.policy_loss_type", "ppo"))
    assert not torch.equal(weights, plain)
    argv = (*argv, f"--actor.{loss_type}.ratio", "0", "--actor.eps_clip", "1e9")
    _, nothing = trained(make_trainer("--actor.policy_loss_type", loss_type, *argv))
    _, plain = trained(make_trainer("--actor.policy_loss_type", "ppo", "--actor.eps_clip", "1e9"))
    assert torch.equal(nothing, plain)  # the same data in the same order


# --- the command line
