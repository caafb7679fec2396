#!/usr/bin/env bash
# Sets up everything and passes all tests: style, unit, contract, browser, integration, faults.
#
#   bash scripts/test.sh [pytest arguments]
#
# Without arguments two rows of tests run side by side, for two cores: integration and then the page; unit and contract, and then
# the kills. The page's come late: a browser beside trainings is slow.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "Installing Debian's chromium for the tests of the page ..."
    { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 || echo "chromium could not be installed: the tests of the page will skip"
fi
ruff check .
ruff format --check .
[ $# -eq 0 ] || exec python -m pytest "$@"

others=$(mktemp) times=$(mktemp)
note() {  # BEGINNING FOLDERS: how long their tests took
    printf '%6d s  %s\n' $((SECONDS - $1)) "$2" >>"$times"
}
beside() {
    local failed=0 folders started
    trap 'kill $! 2>/dev/null || true; exit 1' TERM
    for folders in "tests/unit tests/contract tests/gpu" tests/faults; do
        started=$SECONDS
        # shellcheck disable=SC2086
        python -m pytest --durations=15 $folders &
        wait $! || failed=1
        note "$started" "$folders"
    done
    return $failed
}
beside >"$others" 2>&1 &
pid=$!
trap 'kill $pid 2>/dev/null || true; rm -f "$others" "$times"' EXIT
failed=0
for folder in tests/integration tests/browser; do
    started=$SECONDS
    python -m pytest --durations=15 $folder || failed=1
    note "$started" "$folder"
done
wait $pid || failed=1
trap 'rm -f "$others" "$times"' EXIT
echo "--- unit and contract tests, kills"
cat "$others"
echo "--- time"
cat "$times"
printf '%6d s  %s\n' "$SECONDS" "all of it"
exit $failed
