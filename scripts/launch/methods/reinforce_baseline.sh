# shellcheck shell=bash disable=SC2034,SC2154
# REINFORCE++-baseline: reward minus the group's mean, standardised over the tokens of the batch.
# Not in the paper's table, which has REINFORCE++.
method=(--algo.advantage.estimator reinforce_baseline)
