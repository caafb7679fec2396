# shellcheck shell=bash disable=SC2034,SC2154
# EntropyMech, Clip-Cov, as EBPO's authors set it: tokens of high covariance lose their gradient.
# arXiv 2505.22617; the wide clip range and the missing KL are its authors'. The loss knows no dual clip.
kl=("${no_kl[@]}")
clip=(--actor.eps_clip_low_high 1.0 1.0)
method=(--algo.advantage.estimator group_norm --actor.policy_loss_type clip_cov)
