"""The catalogue of metrics: title and meaning of each number in metrics.jsonl, and when to look closer.

A metric is one line of `GROUPS`. The Space (sections, titles, order, notes), the cards, the picture of a run and
the table in docs/runs.md are made from it. custom_metrics.py adds those of a run's own code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Flag, auto


class Shown(Flag):
    """The place that shows a metric by default."""

    NOWHERE = 0
    SPACE = auto()  # a panel of the page Dynamics
    PICTURE = auto()  # comparison.png of the quickstart
    CARD = auto()  # the picture of a model card


@dataclass(frozen=True)
class Metric:
    """One number per step.

    Attributes:
        name: as in metrics.jsonl. `<k>` stands for a whole number, another `<...>` for any text.
        title: of a panel.
        unit: "" for a plain number.
        tells: what it is; plain text that fits under a panel.
        worry: when to look closer, "" if it never says so by itself.
        shown: where it is shown by default.
        stand_in: the fallback that a panel shows for a run without this metric.
    """

    name: str
    title: str
    unit: str
    tells: str
    worry: str = ""
    shown: Shown = Shown.NOWHERE
    stand_in: str = ""

    def matches(self, name: str) -> bool:
        return name == self.name or ("<" in self.name and _pattern(self.name).fullmatch(name) is not None)

    def with_unit(self, text: str) -> str:
        return f"{text} ({self.unit})" if self.unit else text


@dataclass(frozen=True)
class Group:
    title: str
    note: str
    metrics: tuple[Metric, ...]


@functools.cache
def _pattern(name: str) -> re.Pattern:
    parts = (
        r"\d+" if part == "<k>" else ".+" if part[0] == "<" else re.escape(part)
        for part in re.findall("<.*?>|[^<]+", name)
    )
    return re.compile("".join(parts))


REWARD = "rollout/reward_mean"
HELD_OUT = "eval_<data set>_pass1"
ESTIMATOR = "Estimator"
SPACE, PICTURE, CARD = Shown.SPACE, Shown.PICTURE, Shown.CARD

GROUPS = (
    Group(
        "Outcome",
        "",
        (
            Metric(
                REWARD,
                "Mean reward",
                "",
                "of the step’s responses: success on the training prompts",
                "flat while all-fail groups are many: the prompts are too hard",
                SPACE | PICTURE | CARD,
                "reward",
            ),
            Metric(
                HELD_OUT,
                "Held-out success",
                "",
                "pass@1 in evaluation: mean over prompts of the mean reward",
                "falls while the mean reward rises: what is learnt does not carry over",
                SPACE,
            ),
            Metric(
                "response_length",
                "Response length",
                "tokens",
                "mean of a response",
                "climbs to the token limit, or collapses",
                SPACE,
                "rollout/response_length_mean",
            ),
            Metric(
                "truncated",
                "Truncated",
                "fraction",
                "of responses, cut at the token limit",
                "rises: answers end before their result",
                SPACE,
                "rollout/truncated_rate",
            ),
            Metric(
                "rollout/reward_std",
                "Reward spread",
                "",
                "standard deviation of the step’s rewards",
                "0: every response earned the same",
            ),
            Metric("rollout/response_length_mean", "Batch response length", "tokens", "mean of the batch’s responses"),
            Metric(
                "rollout/truncated_rate",
                "Batch truncated",
                "fraction",
                "of the batch’s responses, cut at the token limit",
            ),
            Metric(
                "rollout/no_answer",
                "Complete without an answer",
                "fraction",
                "of the complete responses in which the reward read no answer",
                "above a fifth: prompts ask for another form than the reward reads",
            ),
            Metric("rollout/num_samples", "Responses", "responses", "in the batch, excluded ones included"),
            Metric("reward", "Reward", "", "mean reward of a response"),
            Metric("score", "Score", "", "mean score of a response: scores of the reward function, else the reward"),
            Metric("return", "Return", "", "mean sum of a response’s per-token rewards"),
            Metric(
                "group_reward_std",
                "Spread in a group",
                "",
                "mean standard deviation of rewards inside a group",
                "0: in every group all responses earned the same",
            ),
            Metric("total_length", "Total length", "tokens", "mean of prompt and response"),
            Metric("response_clip_ratio", "Full length", "fraction", "of responses as long as --data.max_len allows"),
        ),
    ),
    Group(
        "Updates",
        "",
        (
            Metric(
                "actor_grad_norm",
                "Gradient norm",
                "",
                "of the policy, last value of the step",
                "spikes: the learning rate may be too high",
                SPACE | PICTURE,
            ),
            Metric(
                "policy/entropy",
                "Entropy",
                "nats per token",
                "of the policy, mean over the trained tokens",
                "falls towards 0: the policy stops exploring",
                SPACE | PICTURE | CARD,
            ),
            Metric(
                "policy/kl_per_step",
                "KL per step",
                "nats per token",
                "policy before ‖ after the step: how far one step moves it",
                "jumps: steps are too large",
                SPACE,
            ),
            Metric(
                "ppo_clip_ratio",
                "Clipped tokens",
                "fraction",
                "of tokens whose update was clipped",
                "rises: the policy moves far within a step",
                SPACE,
            ),
            Metric(
                "policy/cov_selected_fraction",
                "Chosen tokens",
                "fraction",
                "of tokens that Clip-Cov or KL-Cov chose",
                "0: the loss is the plain one",
            ),
            Metric(
                "policy/cov_mean",
                "Covariance",
                "",
                "of log-probability and advantage, mean over tokens; with Clip-Cov and KL-Cov",
            ),
            Metric("policy_loss", "Policy loss", "", "PPO’s loss of the policy"),
            Metric("actor_lr", "Learning rate", "", "of the policy, last value of the step"),
            Metric(
                "ppo_kl",
                "Drift in a step",
                "nats per token",
                "mean of log-probability before minus during the step’s updates",
            ),
            Metric(
                "kl",
                "KL to the reference",
                "",
                "estimated divergence from the reference model; 0 without one",
                "grows without end: raise --algo.kl.init_coef",
            ),
            Metric(
                "logprobs_diff",
                "Distance to the reference",
                "nats",
                "mean log-probability difference to the reference model",
            ),
            Metric("entropy_loss", "Entropy loss", "", "entropy as OpenRLHF aggregates it; with --actor.entropy_coef"),
            Metric(
                "vllm_kl",
                "Rollout mismatch",
                "nats per token",
                "between the log-probabilities of rollout and training",
                "grows: vLLM and the trained policy disagree",
            ),
            Metric("is_filter_ratio", "Corrected tokens", "fraction", "of tokens corrected for the rollout mismatch"),
            Metric("critic_loss", "Critic loss", "", "loss of the critic; with the estimator gae"),
            Metric("values", "Values", "", "mean value that the critic gives"),
            Metric("critic_lr", "Critic learning rate", "", "of the critic, last value of the step"),
            Metric("critic_grad_norm", "Critic gradient norm", "", "of the critic, last value of the step"),
        ),
    ),
    Group(
        ESTIMATOR,
        "EBPO only. A group’s baseline is V = (1 − S)·group mean + S·prior mean, with S = (σ²/G) / (σ²/G + τ²).",
        (
            Metric(
                "ebpo/shrinkage",
                "Shrinkage S",
                "",
                "mean weight of the prior. 0: the group’s mean alone; 1: the prior’s",
                "near 1: groups hardly differ and the prior decides",
                SPACE | PICTURE | CARD,
            ),
            Metric(
                "ebpo/prior_mean",
                "Prior mean μ_glob",
                "",
                "of the rewards in the prior: in preset paper all so far, this step included",
                "far below the mean reward: it lags a policy that learns fast",
                SPACE,
            ),
            Metric(
                "ebpo/within_variance", "Within variance σ²", "", "in preset paper of all rewards so far", shown=SPACE
            ),
            Metric(
                "ebpo/between_variance",
                "Between variance τ²",
                "",
                "in preset paper of all group means so far",
                "near 0: S is near 1",
                SPACE,
            ),
            Metric(
                "ebpo/prior_count",
                "Rewards in the prior",
                "rewards",
                "so far; older ones count less where the history forgets",
            ),
            Metric(
                "ebpo/half_life",
                "Half-life of the prior",
                "steps",
                "that an adaptive history settled on, at most the age of the run",
                "1 to 2 for long: success changes faster than a prior can follow",
            ),
            Metric(
                "ebpo/clusters",
                "Clusters in the prior",
                "clusters",
                "that have their own prior; with clusters cluster",
                "0: no prompt has a cluster",
            ),
        ),
    ),
    Group(
        "Groups",
        "A group is all answers to one prompt in one step. Where all fail or all pass, GRPO’s advantages are zero.",
        (
            Metric(
                "ebpo/all_fail_fraction",
                "All-fail groups",
                "fraction",
                "of groups in which every valid response failed",
                "near 1: the prompts are too hard, though EBPO helps most here",
                SPACE | PICTURE,
            ),
            Metric(
                "ebpo/all_pass_fraction",
                "All-pass groups",
                "fraction",
                "of groups in which every valid response passed",
                "near 1: the prompts are solved, and EBPO keeps pushing them",
                SPACE,
            ),
            Metric(
                "ebpo/rescued_fraction",
                "Responses GRPO ignores",
                "fraction",
                "of valid responses: zero advantage under GRPO, not under EBPO",
                shown=SPACE,
            ),
            Metric(
                "ebpo/zero_advantage",
                "Zero advantages",
                "",
                "1 for a step whose responses all earned the same, or got no advantage; else 0",
                "1 again and again: nothing is learnt; the output says why",
            ),
            Metric(
                "ebpo/reward_error_fraction",
                "Reward errors",
                "fraction",
                "of responses whose reward failed",
                "above 0: read the errors in the rollouts",
                SPACE,
            ),
            Metric(
                "dynamic_filtering_pass_rate",
                "Kept by the filter",
                "",
                "share of prompts as OpenRLHF computes it; with --algo.dynamic_filtering_enable",
            ),
        ),
    ),
    Group(
        "Mismatch",
        (
            "Rollout engine against trainer, for the tokens of a few responses, before the step’s updates. The "
            "ratio w is trainer by rollout."
        ),
        (
            Metric(
                "mismatch/k3_kl",
                "Mismatch KL",
                "nats per token",
                "rollout ‖ trainer: mean of w − 1 − log w, with w clipped to 1/10 … 10",
                "several times what it was: vLLM samples from other weights, or with other precision",
                SPACE,
            ),
            Metric(
                "mismatch/chi2_token", "Mismatch χ²", "", "mean of w² − 1 over tokens", "grows: a few tokens weigh much"
            ),
            Metric(
                "mismatch/ess",
                "Effective tokens",
                "fraction",
                "(Σw)² / (n Σw²) of n tokens: those that would tell as much, sampled by the trainer",
                "well below 1: rollouts are off-policy, and centred estimators lose",
            ),
            Metric(
                "mismatch/ess_sequence",
                "Effective responses",
                "fraction",
                "the same of responses, whose ratio is the product of their tokens’",
                "falls with length: near 0 no correction by sequences can work",
            ),
            Metric(
                "mismatch/largest_ratio",
                "Largest ratio",
                "",
                "the greatest w of a token; cut at e²⁰",
                "100 and more: this token was all but impossible to the engine",
            ),
            Metric("mismatch/tokens", "Tokens compared", "tokens", "that the mismatch was measured on"),
            Metric(
                "mismatch/stale",
                "Stale weights",
                "",
                "1 for a step whose rollouts are further from the trainer than their age explains; else 0",
                "1: the engines may not get the weights; the output says more",
            ),
        ),
    ),
    Group(
        "Packaged rewards",
        "With --reward.remote_url math.",
        (
            Metric(
                "math_no_answer",
                "No answer",
                "fraction",
                "of responses in which no answer was found",
                "rises: the answer’s form is lost",
            ),
            Metric(
                "math_timeout",
                "Cut off",
                "fraction",
                "of responses whose grading took too long or crashed",
                "rises: look at these answers",
            ),
        ),
    ),
    Group(
        "Evaluation",
        "During training, with --eval.dataset.",
        (
            Metric("eval_<data set>_pass<k>", "pass@k", "", "mean over prompts of the best of k rewards"),
            Metric(
                "eval_<data set>_maj<k>",
                "maj@k",
                "",
                "mean over prompts of the success of the majority of k answers; with --eval.metrics",
            ),
            Metric("eval_response_length_mean", "Evaluation length", "tokens", "mean of a response"),
            Metric("eval_truncated_rate", "Evaluation truncated", "fraction", "of responses, cut at the token limit"),
            Metric("eval_num_samples", "Evaluated", "responses", "of the evaluation"),
            Metric(
                "eval_<data set>_response_length_mean",
                "Evaluation length",
                "tokens",
                "mean of a response to this data set",
            ),
            Metric(
                "eval_<data set>_truncated_rate",
                "Evaluation truncated",
                "fraction",
                "of responses to this data set, cut at the token limit",
            ),
        ),
    ),
    Group(
        "Time and the Hub",
        "",
        (
            Metric("timing/generation", "Generation", "s", "to generate the batch"),
            Metric("timing/make_experience", "Experience", "s", "for log-probabilities, rewards, KL and advantages"),
            Metric("timing/ppo_train", "Training", "s", "to train"),
            Metric("timing/broadcast", "Broadcast", "s", "to send the weights to vLLM"),
            Metric("timing/step_total", "Step", "s", "sum of the timings; in async mode the step by the clock"),
            Metric(
                "timing/run_log",
                "Run log",
                "s",
                "to hand over the rollouts and write prior.json",
                "more than moments: the disk is too slow for what is recorded",
            ),
            Metric("timing/<part>", "Time", "s", "of another part of the step"),
            Metric(
                "phase/<phase>",
                "Phase",
                "s",
                "of the trainer since the step before; all phases together are the step by the clock",
            ),
            Metric(
                "hub/pending",
                "Waiting for the Hub",
                "checkpoints",
                "that are not pushed yet; with --hub.repo",
                "grows: the upload is slower than saving",
            ),
            Metric(
                "hub/failed",
                "Failed pushes",
                "attempts",
                "since the run began; with --hub.repo",
                "above 0: the reason is in the output",
            ),
        ),
    ),
)
METRICS = tuple(metric for group in GROUPS for metric in group.metrics)
_BY_NAME = {metric.name: metric for metric in METRICS}


def find(name: str) -> Metric | None:
    """The entry of a name in metrics.jsonl, None if the catalogue has none."""
    return _BY_NAME.get(name) or next((metric for metric in METRICS if metric.matches(name)), None)


def metrics_for(place: Shown) -> Iterator[Metric]:
    return (metric for metric in METRICS if place in metric.shown)
