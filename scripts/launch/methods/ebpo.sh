# shellcheck shell=bash disable=SC2034,SC2154
# EBPO: the estimator of Algorithm 1, with a history of all batches.
method=(--algo.advantage.estimator ebpo)
