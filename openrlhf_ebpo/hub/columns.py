"""What the columns of a published run mean, for its data card. The tests hold these names against the writers."""

from __future__ import annotations

import re

ROLLOUTS = {
    "step": "training step",
    "prompt_id": "hash of prompt and label; the same in every run",
    "group": "number of the group (all responses to one prompt) in the batch, from 0",
    "sample": "number of the response in its group, from 0",
    "cluster": "topic of the prompt, where the training data has one",
    "prompt": "prompt as the model read it",
    "response": "response from its first token to the end, special tokens shown",
    "label": "what the reward function compared the response with",
    "raw_reward": "reward as the reward function gave it; null where it failed",
    "reward": "reward after length penalties and clipping; null for a response that was left out",
    "valid": "false for a response that was left out of training",
    "error": "why the reward failed; null otherwise",
    "group_mean": "mean reward of the group's valid responses",
    "baseline": "EBPO's baseline of the group; null under other estimators",
    "shrinkage": "weight of the prior in that baseline; null under other estimators",
    "advantage": "advantage that was trained on (under EBPO: normalised, before any KL penalty)",
    "grpo_advantage": "what GRPO would have given for these rewards; 0 in a group of equal rewards",
    "response_length": "tokens of the response",
    "truncated": "whether the response reached the token limit",
}
SAMPLES = {
    "question_id": "id of the question",
    "question": "the question, without any instruction",
    "gold": "the right answer",
    "response": "the model's response, special tokens left out",
    "extracted": "the answer found in it; null: none",
    "correct": "whether that answer is right",
    "error": "why grading failed; null otherwise",
    "length": "tokens of the response",
    "finish_reason": "`length`: the response was cut at the token limit",
    "seed": "of the engine that generated it",
    "sample": "number of the response to its question, from 0",
    "class": "responses to one question with the same number gave equivalent answers; -1: no answer",
    "rules": "how the question is scored (unit, tolerance, several answers), as JSON",
}
CHECKPOINTS = {
    "step": "training step",
    "tag": "name of the checkpoint",
    "checkpoint": "folder of the DeepSpeed checkpoint (its last part only); null where none was kept",
    "model": "folder of the exported model (its last part only); null where none was exported",
    "complete": "true",
}
METRICS = {
    "step": "training step",
    "time": "seconds since 1970, UTC",
    "ebpo/shrinkage": "mean weight of the prior over groups",
    "ebpo/prior_mean": "mean of all rewards so far",
    "ebpo/within_variance": "variance of all rewards so far",
    "ebpo/between_variance": "variance of all group means so far",
    "ebpo/prior_count": "number of rewards so far",
    "ebpo/all_fail_fraction": "fraction of groups in which every response failed",
    "ebpo/all_pass_fraction": "fraction of groups in which every response passed",
    "ebpo/rescued_fraction": "fraction of responses with no advantage under GRPO and one here",
    "ebpo/reward_error_fraction": "fraction of responses whose reward failed",
    "policy/entropy": "entropy of the policy, nats a token",
    "policy/kl_per_step": "KL divergence of the policy before and after the step, on the step's tokens",
    "policy/cov_selected_fraction": "tokens that Clip-Cov or KL-Cov chose",
    "policy/cov_mean": "covariance of log-probability and advantage",
    "policy_loss": "loss of the policy",
    "actor_lr": "learning rate",
    "actor_grad_norm": "norm of the policy's gradient",
    "critic_loss": "loss of the critic",
    "critic_lr": "learning rate of the critic",
    "critic_grad_norm": "norm of the critic's gradient",
    "values": "mean value that the critic gives",
    "ppo_clip_ratio": "fraction of tokens whose ratio was clipped",
    "ppo_kl": "mean of log-probability before minus during the step's updates",
    "kl": "estimated KL divergence to the reference model",
    "logprobs_diff": "mean log-probability difference to the reference model",
    "entropy_loss": "entropy as OpenRLHF aggregates it",
    "vllm_kl": "difference between the log-probabilities of rollout and training",
    "is_filter_ratio": "fraction of tokens that were corrected for that difference",
    "reward": "mean reward of a response",
    "score": "mean score of a response",
    "return": "mean sum of a response's per-token rewards",
    "group_reward_std": "mean standard deviation of rewards inside a group",
    "response_length": "mean tokens of a response",
    "total_length": "mean tokens of prompt and response",
    "response_clip_ratio": "fraction of responses as long as is allowed",
    "truncated": "fraction of responses that reached the token limit",
    "rollout/reward_mean": "mean reward of the batch",
    "rollout/reward_std": "standard deviation of the batch's rewards",
    "rollout/response_length_mean": "mean tokens of the batch's responses",
    "rollout/truncated_rate": "fraction of the batch's responses that reached the token limit",
    "rollout/num_samples": "responses in the batch",
    "dynamic_filtering_pass_rate": "share of prompts that dynamic filtering kept",
    "timing/generation": "seconds to generate the batch",
    "timing/make_experience": "seconds for log-probabilities, rewards and advantages",
    "timing/ppo_train": "seconds to train",
    "timing/broadcast": "seconds to send the weights to vLLM",
    "timing/step_total": "seconds of the step",
    "timing/run_log": "seconds to hand over what is recorded",
    "hub/pending": "checkpoints that wait to be pushed to the Hub",
    "hub/failed": "pushes to the Hub that failed so far",
    "eval_num_samples": "responses of the evaluation during training",
    "eval_response_length_mean": "mean tokens of its responses",
    "eval_truncated_rate": "fraction of its responses that reached the token limit",
}
EVALUATION = (  # of --eval.dataset, by data source
    (r"eval_(.+)_pass1", "evaluation during training on {}: mean reward"),
    (r"eval_(.+)_pass(\d+)", "evaluation during training on {}: mean over prompts of the best of {} rewards"),
    (r"eval_(.+)_response_length_mean", "evaluation during training on {}: mean tokens of a response"),
    (r"eval_(.+)_truncated_rate", "evaluation during training on {}: fraction of responses at the token limit"),
    (r"timing/(.+)", "seconds of {}"),
)
OTHER = "logged by the reward function, or by OpenRLHF"


def metric_meaning(name: str) -> str:
    """Plain text; parts of the name are not escaped."""
    if name in METRICS:
        return METRICS[name]
    for pattern, meaning in EVALUATION:
        if match := re.fullmatch(pattern, name):
            return meaning.format(*match.groups())
    return OTHER
