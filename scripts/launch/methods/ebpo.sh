# shellcheck shell=bash disable=SC2034,SC2154
# EBPO.
# paper: the estimator of Algorithm 1, with a history of all batches.
# released: their compute_ebpo_outcome_advantage makes new moments in every call, so no run of theirs had a history.
scripts="shuffle topic difficulty"
method=(--algo.advantage.estimator ebpo)
if [ "$track" = released ]; then
    method+=(--algo.advantage.ebpo.preset release)
fi
