# shellcheck shell=bash disable=SC2034
# EntropyMech, KL-Cov: tokens of high covariance get a KL penalty.
# arXiv 2505.22617; no other KL.
kl=(--algo.kl.init_coef 0)
clip=() # it does not clip
method=(--algo.advantage.estimator group_norm --actor.policy_loss_type kl_cov)
