# shellcheck shell=bash disable=SC2034
# Dr. GRPO: reward minus the group's mean.
# Its own loss divides by a constant instead of each response's length. OpenRLHF has no such mode; token-mean, which
# the paper uses for all methods, differs from it by one factor per step (the step's number of tokens for a constant).
method=(--algo.advantage.estimator dr_grpo)
