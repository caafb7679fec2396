# shellcheck shell=bash disable=SC2034
# EBPO, shuffled prompts.
method=(--algo.advantage.estimator ebpo)
