#!/usr/bin/env bash
# Checks that everything runs on this machine's GPU: tests, trainings in every mode, kill and resume, timings: one report.
#
#   bash scripts/gpu_check.sh [REPORT_DIR] [--only PART ...] [--cpu]     --help
#
# REPORT_DIR: default runs/gpu_check. For Linux with an NVIDIA GPU and the stack installed for the python3 on PATH (docs/gpus.md).
# With --cpu, or without a GPU, the CPU stack is installed if no stack is. Repeat the command to resume.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
has_stack() { # MODULE ...: of it and of this. Not from here: the checkout itself would pass for an installed package
    cd / && python3 -c 'import importlib.util, sys
sys.exit(not all(map(importlib.util.find_spec, ("torch", "vllm", "openrlhf", "ray", "deepspeed", *sys.argv[1:]))))' "$@" 2>/dev/null
}
has_gpu() {
    compgen -G '/dev/nvidia[0-9]*' >/dev/null || nvidia-smi -L >/dev/null 2>&1
}
fail() {
    printf 'error: this machine has a GPU, and %s: %s\n' "$(command -v python3)" "$1" >&2
    printf 'Install the stack (docs/gpus.md), or add --cpu for a rehearsal on the CPU:\n%s\n' \
        "$(python3 -c 'from openrlhf_ebpo.upstream.releases import GPU_INSTALL; print(GPU_INSTALL)')" >&2
    exit 1
}
if ! (has_stack openrlhf_ebpo); then
    if has_gpu && [[ " $* " != *" --cpu "* ]]; then # setup.sh would install the CPU stack
        (has_stack) || fail 'torch, vllm, openrlhf, ray or deepspeed is not installed'
        cause=$(python3 -c 'import torch; torch.cuda.init()' 2>&1) || fail "$(tail -n 1 <<<"$cause")"
    fi
    . scripts/setup.sh
fi
exec python3 research/gpu_check.py "$@"
