#!/usr/bin/env bash
#SBATCH --job-name=ebpo
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=48:00:00
#SBATCH --output=ebpo-%j.log
#SBATCH --signal=B:USR1@1200
# Trains one row of the paper's table on a Slurm cluster: a Ray cluster over the allocated nodes, then run.sh.
#
#   sbatch scripts/launch/slurm.sh MODEL METHOD G [flags]                   from the project's root, environment active
#   sbatch --nodes=1 --time=96:00:00 scripts/launch/slurm.sh MODEL METHOD G [flags]   sbatch's options win over the file's
#   bash scripts/launch/slurm.sh --print MODEL METHOD G [flags]             print the commands of the job, run nothing
#
# Nodes and GPUs are those of the allocation; the other variables are run.sh's (`bash scripts/launch/run.sh --help`).
#   HEAD_IP     address at which the other nodes reach the first one; default: the first of `hostname -I`
#   RAY_PORT    6379
#   RAY_WAIT=300   seconds to wait for all nodes to join
# 1,200 seconds before its time limit the job gets USR1: the training saves after its current step and ends (status 75).
# Submit the job again to resume it. If a step takes longer, ask for more time: sbatch --signal=B:USR1@SECONDS.
# To save and end at any time: scancel --batch --signal=USR1 JOB.
set -euo pipefail

fail() {
    printf 'error: %s\n' "$@" >&2
    exit 2
}

teach() {
    sed -n '/^# Trains/,/^set -/{/^set -/d;s/^# \{0,1\}//p}' "$0"
}

run() { # or, with --print, show it
    if [ "$show" ]; then
        printf '%q ' "$@" && echo
    else
        "$@"
    fi
}

start() { # in the background
    if [ "$show" ]; then run "$@"; else "$@" & fi
}

end_ray() {
    local pids
    pids=$(jobs -p)
    [ -z "$pids" ] || xargs kill <<<"$pids" 2>/dev/null || true
}

train() { # in the background: bash calls a trap only while it waits
    local status=0 training
    "$@" &
    training=$!
    trap 'kill -USR1 "$training" || true' USR1
    trap 'kill -TERM "$training" || true' TERM
    while :; do # a trapped signal ends `wait`, and not the training
        wait "$training" && status=0 || status=$?
        kill -0 "$training" 2>/dev/null || return "$status"
    done
}

show=
case ${1-} in
    '' | -h | --help) teach && exit ;;
    --print) show=1 && shift ;;
esac
root=${SLURM_SUBMIT_DIR:-$PWD}
[ -f "$root/scripts/launch/run.sh" ] || fail "$root has no scripts/launch/run.sh: submit from the project's root"
cd "$root"
[ "$show" ] || [ "${SLURM_JOB_NODELIST-}" ] || fail "not inside a Slurm job; submit it: sbatch scripts/launch/slurm.sh $*"

# Slurm says 8, h200:8 or gpu:h200:8
per_node=${SLURM_GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-${GPUS_PER_NODE:-8}}}
export NODES=${SLURM_JOB_NUM_NODES:-${NODES:-4}} GPUS_PER_NODE=${per_node##*:}
bash scripts/launch/run.sh --print "$@" >/dev/null # mistyped names end here

first=${SLURMD_NODENAME:-$(hostname -s)} # where this script runs
address=${HEAD_IP:-$(hostname -I | awk '{ print $1 }')}:${RAY_PORT:-6379}
# --ntasks too: a job's environment has that of all its nodes
step=(--nodes=$((NODES - 1)) --ntasks=$((NODES - 1)) --ntasks-per-node=1 --gpus-per-node="$GPUS_PER_NODE" --exclude="$first")
step+=(${SLURM_CPUS_ON_NODE:+"--cpus-per-task=$SLURM_CPUS_ON_NODE"}) # all of a node, which the job has to itself
trap end_ray EXIT

run bash scripts/launch/run.sh "$@" --dry_run # mistakes are reported before Ray starts
start ray start --head --node-ip-address "${address%:*}" --port "${address##*:}" --num-gpus "$GPUS_PER_NODE" --block
if ((NODES > 1)); then
    start srun "${step[@]}" ray start --address "$address" --num-gpus "$GPUS_PER_NODE" --block
fi
run python scripts/launch/wait_for_gpus.py "$address" $((NODES * GPUS_PER_NODE)) "${RAY_WAIT:-300}"
command=(env RAY_ADDRESS="$address" bash scripts/launch/run.sh "$@")
if [ "$show" ]; then run "${command[@]}"; else train "${command[@]}"; fi
