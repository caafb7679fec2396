# shellcheck shell=bash disable=SC2034,SC2154
# EBPO, one epoch from easy to hard.
# Easy is what this very model often solves before training, so each model has an order of its own.
data=difficulty_order_$model_name
episodes=1
every=10
method=(--algo.advantage.estimator ebpo --data.order as_is)
