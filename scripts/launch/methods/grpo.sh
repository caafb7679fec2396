# shellcheck shell=bash disable=SC2034,SC2154
# GRPO: reward minus the group's mean, over the group's standard deviation.
method=(--algo.advantage.estimator group_norm)
