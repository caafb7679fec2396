# shellcheck shell=bash disable=SC2034,SC2154
# EntropyMech's own Clip-Cov: the recipe of its authors, G = 8.
# paper: recipe/dapo/7b_clip_cov.sh of PRIME-RL/Entropy-Mechanism-of-RL, but for the model and the order.
# released: EBPO's authors have no such script.
own=8
# shellcheck source-path=SCRIPTDIR source=../entropymech.sh
. "$here/entropymech.sh"
clip=(--actor.eps_clip_low_high 1.0 1.0)
method=(--algo.advantage.estimator group_norm "${mixed_groups[@]}" --actor.policy_loss_type clip_cov)
