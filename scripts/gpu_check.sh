#!/usr/bin/env bash
# Does everything run on this machine's GPU? Tests, trainings in every mode, kill and resume, timings: one report.
#
#   bash scripts/gpu_check.sh [REPORT_DIR] [--minutes N] [--only PART ...] [--large] [--cpu] [--dry_run]     --help
#
# REPORT_DIR: default runs/gpu_check. For Linux with an NVIDIA GPU and the stack installed (docs/gpu.md); the python3 on PATH is taken
# where it has the stack, otherwise the project's own environment is made, or reused. Called again, it goes on with what is left.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
has_stack() { # then nothing is installed. Not from here: the checkout itself would pass for an installed package
    cd / && python3 -c 'import importlib.util, sys
sys.exit(not all(map(importlib.util.find_spec, ("torch", "vllm", "openrlhf", "ray", "deepspeed", "openrlhf_ebpo"))))' 2>/dev/null
}
(has_stack) || . scripts/setup.sh
exec python3 benchmarks/gpu_check.py "$@"
