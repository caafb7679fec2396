# shellcheck shell=bash disable=SC2034
# REINFORCE++-baseline: reward minus the group's mean, standardised over the tokens of the batch.
method=(--algo.advantage.estimator reinforce_baseline)
