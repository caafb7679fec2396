# shellcheck shell=bash disable=SC2034,SC2154
# RLOO: reward minus the mean of the group's other responses.
method=(--algo.advantage.estimator rloo)
