# shellcheck shell=bash disable=SC2034
# EntropyMech, Clip-Cov: tokens of high covariance lose their gradient.
# arXiv 2505.22617; the wide clip range and the missing KL are its authors', and those of EBPO's authors.
kl=(--algo.kl.init_coef 0)
clip=(--actor.eps_clip_low_high 1.0 1.0)
method=(--algo.advantage.estimator group_norm --actor.policy_loss_type clip_cov)
