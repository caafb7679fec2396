# shellcheck shell=bash disable=SC2034,SC2154
# REINFORCE++-baseline: reward minus the group's mean, standardised over the tokens of the batch.
# paper: not in the table, which has REINFORCE++.
# released: no script; theirs is reinforce_pp.
scripts=""
method=(--algo.advantage.estimator reinforce_baseline)
