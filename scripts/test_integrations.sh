#!/usr/bin/env bash
# The estimators in other trainers, and the published package: makes an environment for each (their pins exclude each other's) and
# runs its tests on the CPU. trl executes the notebook, too, and the oldest release of TRL.
#
#   bash scripts/test_integrations.sh [trl] [unsloth] [axolotl] [swift] [verl] [package]     all, if none is named; minutes each, and about 2 GB of disk
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TRL_DISABLE_TELEMETRY=1 RAY_USAGE_STATS_ENABLED=0 CUDA_VISIBLE_DEVICES="" GLOO_SOCKET_IFNAME=lo
index=https://download.pytorch.org/whl/cpu
[ $# -gt 0 ] || set -- trl unsloth axolotl swift verl package

for trainer in "$@"; do
    pins=$root/requirements/$trainer.txt environment=$root/.venv-$trainer
    [ -f "$pins" ] && [ -f "$root/tests/integrations/test_$trainer.py" ] || { echo "test_integrations.sh: no trainer $trainer; choose trl, unsloth, axolotl, swift, verl or package" >&2; exit 2; }
    if ! cmp -s "$pins" "$environment/installed.txt"; then
        echo "Installing requirements/$trainer.txt into .venv-$trainer ..."
        python3 -m venv --clear "$environment"
        [ "$trainer" = package ] || "$environment/bin/pip" install -q --no-compile --no-deps torch==2.13.0+cpu || "$environment/bin/pip" install -q --no-compile --no-deps --index-url "$index" torch==2.13.0+cpu
        "$environment/bin/pip" install -q --no-compile --no-deps -r "$pins"
        cp "$pins" "$environment/installed.txt"
    fi
    (cd "$root/tests/integrations" && PYTHONPATH=$root "$environment/bin/python" -m pytest -o addopts= --import-mode=importlib -p no:cacheprovider -q test_"$trainer"*.py)
    if [ "$trainer" = trl ]; then
        oldest=$environment/oldest # before the newest on Python's path
        [ -d "$oldest" ] || "$environment/bin/pip" install -q --no-compile --no-deps --target "$oldest" trl==1.0.0 requests==2.34.2 urllib3==2.8.0 certifi==2026.10.18 charset-normalizer==3.5.3
        (cd "$root/tests/integrations" && PYTHONPATH=$oldest:$root "$environment/bin/python" -m pytest -o addopts= --import-mode=importlib -p no:cacheprovider -q test_trl.py -k killed_and_resumed)
    fi
done
