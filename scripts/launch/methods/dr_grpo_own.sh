# shellcheck shell=bash disable=SC2034,SC2154
# Dr. GRPO without KL, as its own authors train it (arXiv 2503.20783: beta = 0).
# paper: all else as dr_grpo.
# released: EBPO's authors have no such script.
own=1
kl=("${no_kl[@]}")
method=(--algo.advantage.estimator dr_grpo)
