# shellcheck shell=bash disable=SC2034,SC2154
# Settings that both losses of EntropyMech share in their authors' own scripts for 7B (PRIME-RL/Entropy-Mechanism-of-RL).
prompts=256
mini_batch=32 # eight optimizer steps a rollout batch
prompt_len=2048
learning_rate=5e-7
weight_decay=0
save_every=32
eval_every=32 # theirs tests every 4, with one greedy answer
kl=("${no_kl[@]}")
mixed_groups=(--algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1)
