# shellcheck shell=bash disable=SC2034,SC2154
# RLOO: reward minus the mean of the group's other responses.
# paper, released: the same. Four-node scripts keep the file's order, later one-node scripts shuffle and make 6 passes.
scripts="shuffle"
method=(--algo.advantage.estimator rloo)
