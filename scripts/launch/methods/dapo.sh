# shellcheck shell=bash disable=SC2034
# DAPO: GRPO with clip-higher, dynamic sampling, overlong shaping, no KL.
# arXiv 2503.14476. Its token-level loss is shared by all methods here. The buffer of 4,096 tokens is the one that
# DAPO's authors use for responses of 8,192. The prompts of a step are those whose group mean is strictly between
# fail and pass; those that are filtered out are used up all the same, hence twice the passes over the data.
episodes=58
kl=(--algo.kl.init_coef 0)
clip=(--actor.eps_clip_low_high 0.2 0.28 --actor.dual_clip 3.0)
method=(
    --algo.advantage.estimator group_norm
    --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1
    --reward.overlong_buffer_len 4096 --reward.overlong_penalty_factor 1.0
)
