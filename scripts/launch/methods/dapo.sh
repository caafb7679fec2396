# shellcheck shell=bash disable=SC2034,SC2154
# DAPO: GRPO with clip-higher, dynamic sampling, overlong shaping, no KL.
# As DAPO's authors train (arXiv 2503.14476 and their script run_dapo_qwen2.5_32b.sh), but for lengths and G. Prompts
# that are filtered out count as used, hence twice the passes. Their penalty of 1 is for rewards of 1 and -1; for
# 1 and 0 it is half of that, and the advantages are the same. The buffer is their 4,096 tokens.
mini_batch=32
[ "$order" = difficulty ] || passes=$((2 * passes))
weight_decay=0.1
warm_up=10
kl=("${no_kl[@]}")
clip=(--actor.eps_clip_low_high 0.2 0.28 --actor.dual_clip 10.0)
method=(
    --algo.advantage.estimator group_norm
    --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1
    --reward.overlong_buffer_len 4096 --reward.overlong_penalty_factor 0.5
)
