#!/usr/bin/env bash
# Trains one row of the paper's table on a running Ray cluster: `ray job submit` of run.sh.
#
#   on the first node    ray start --head --dashboard-host 0.0.0.0
#   on every other       ray start --address FIRST_NODE:6379
#   from anywhere        RAY_ADDRESS=http://FIRST_NODE:8265 bash scripts/launch/ray_job.sh MODEL METHOD G [flags]
#   only print it        bash scripts/launch/ray_job.sh --print MODEL METHOD G [flags]
#
# PROJECT is the project's folder as the first node sees it (default: this one), with the package installed on every
# node and DATA_DIR and RUN_DIR on storage that all of them share. The variables of run.sh travel with the job.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
    printf 'error: %s\n' "$@" >&2
    exit 2
}

show=
case ${1-} in
    '' | -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//p}' "$0" && exit ;;
    --print) show=1 && shift ;;
esac
bash "$here/run.sh" --print "$@" >/dev/null # mistyped names end here

entrypoint=(env -C "${PROJECT:-$(dirname "$(dirname "$here")")}")
for name in NODES GPUS_PER_NODE GPU_GB DATA_DIR RUN_DIR MODEL_PATH CHAT_TEMPLATE; do
    [ -z "${!name-}" ] || entrypoint+=("$name=${!name}")
done
entrypoint+=(bash scripts/launch/run.sh "$@")
for word in "${entrypoint[@]}"; do # Ray passes the words to a shell without quoting them
    [[ $word =~ ^[A-Za-z0-9_./:,=+@%~-]+$ ]] || fail "'$word' cannot pass through \`ray job submit\`: use letters, digits and _./:,=+@%~- only"
done
submit=(ray job submit -- "${entrypoint[@]}")
if [ "$show" ]; then
    echo "${submit[*]}" && exit
fi
ray job list >/dev/null 2>&1 || fail "no Ray cluster takes jobs at ${RAY_ADDRESS:-http://127.0.0.1:8265}. On its first node: ray start --head --dashboard-host 0.0.0.0; then set RAY_ADDRESS here"
exec "${submit[@]}"
