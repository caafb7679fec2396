#!/usr/bin/env bash
# Sets up everything and passes the tests: style, unit, contract, browser, integration, faults.
#
#   bash scripts/test.sh                        the daily tests, in two rows side by side, for two cores
#   bash scripts/test.sh --all                  the nightly ones too: slow tests whose faults daily ones find as well
#   bash scripts/test.sh [pytest arguments]     these, whether daily or nightly
#
# The page's tests come late: a browser beside trainings is slow.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
export OPENRLHF_EBPO_TEST_SLOW=${OPENRLHF_EBPO_TEST_SLOW:-3} # time limits of tests, times this: two rows keep two cores busy
if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "Installing Debian's chromium for the tests of the page ..."
    { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 || echo "chromium could not be installed: the tests of the page will skip"
fi
ruff check .
ruff format --check .
tier=(-m "not nightly")
if [ "${1:-}" = --all ]; then
    tier=()
    shift
fi
[ $# -eq 0 ] || exec python -m pytest "$@"

others=$(mktemp) times=$(mktemp)
note() {  # BEGINNING FOLDERS: how long their tests took
    printf '%6d s  %s\n' $((SECONDS - $1)) "$2" >>"$times"
}
beside() {
    local failed=0 folders started
    trap 'kill $! 2>/dev/null || true; exit 1' TERM
    for folders in tests/unit "tests/faults tests/gpu"; do
        started=$SECONDS
        # shellcheck disable=SC2086
        python -m pytest --durations=15 "${tier[@]}" $folders &
        wait $! || failed=1
        note "$started" "$folders"
    done
    return $failed
}
beside >"$others" 2>&1 &
pid=$!
trap 'kill $pid 2>/dev/null || true; rm -f "$others" "$times"' EXIT
failed=0
for folder in tests/integration tests/contract tests/browser; do
    started=$SECONDS
    python -m pytest --durations=15 "${tier[@]}" $folder || failed=1
    note "$started" "$folder"
done
wait $pid || failed=1
trap 'rm -f "$others" "$times"' EXIT
echo "--- unit tests, faults"
cat "$others"
echo "--- time"
cat "$times"
printf '%6d s  %s\n' "$SECONDS" "all of it"
exit $failed
