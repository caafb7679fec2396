# shellcheck shell=bash disable=SC2034,SC2154
# EntropyMech's own KL-Cov: the recipe of its authors, G = 8.
# paper: recipe/dapo/7b_kl_cov.sh of PRIME-RL/Entropy-Mechanism-of-RL, but for the model and the order.
# released: EBPO's authors have no such script.
own=8
# shellcheck source-path=SCRIPTDIR source=../entropymech.sh
. "$here/entropymech.sh"
clip=()
method=(--algo.advantage.estimator group_norm "${mixed_groups[@]}" --actor.policy_loss_type kl_cov --actor.kl_cov.ratio 0.002 --actor.kl_cov.coef 1)
