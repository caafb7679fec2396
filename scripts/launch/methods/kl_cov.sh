# shellcheck shell=bash disable=SC2034,SC2154
# EntropyMech, KL-Cov, set as Clip-Cov: tokens of high covariance get a KL penalty.
# arXiv 2505.22617; no other KL.
# The text says EntropyMech, and not which of the two.
kl=("${no_kl[@]}")
clip=() # it does not clip
method=(--algo.advantage.estimator group_norm --actor.policy_loss_type kl_cov)
