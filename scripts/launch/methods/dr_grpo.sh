# shellcheck shell=bash disable=SC2034,SC2154
# Dr. GRPO: reward minus the group's mean.
# paper: with the KL of all methods. Its own loss divides by a constant instead of each response's length. OpenRLHF has no
# such mode; token-mean, which the paper uses for all methods, differs by one factor per step.
# released: the same, no division by the standard deviation, token mean.
scripts="shuffle difficulty"
method=(--algo.advantage.estimator dr_grpo)
if [ "$track" = released ]; then
    one_node
fi
