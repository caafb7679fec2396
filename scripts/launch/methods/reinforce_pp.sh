# shellcheck shell=bash disable=SC2034,SC2154
# REINFORCE++: the reward itself, standardised over the tokens of the batch; no group baseline.
# With the KL of all methods as a loss, where REINFORCE++'s paper takes it from the reward.
method=(--algo.advantage.estimator reinforce)
