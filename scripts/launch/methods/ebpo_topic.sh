# shellcheck shell=bash disable=SC2034
# EBPO, prompts in topic order.
data=topic_order
method=(--algo.advantage.estimator ebpo --data.order as_is --data.cluster_key cluster)
