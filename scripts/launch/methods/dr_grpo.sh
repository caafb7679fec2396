# shellcheck shell=bash disable=SC2034,SC2154
# Dr. GRPO: reward minus the group's mean.
# With the KL of all methods. Its own loss divides by a constant instead of each response's length. OpenRLHF has no
# such mode; token-mean, which the paper uses for all methods, differs by one factor per step.
method=(--algo.advantage.estimator dr_grpo)
