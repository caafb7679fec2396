#!/usr/bin/env bash
# Sets up everything and passes all tests: style, unit, contract, browser, integration, faults.
#
#   bash scripts/test.sh [pytest arguments]
#
# Without arguments the unit and contract tests, and then the tests of the page, run beside the integration tests, which wait for
# processes to start. The page's come last: a browser beside both is slow.
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

others=$(mktemp)
beside() {
    local failed=0 folders
    trap 'kill $! 2>/dev/null || true; exit 1' TERM
    for folders in "tests/unit tests/contract" tests/browser; do
        # shellcheck disable=SC2086
        python -m pytest $folders &
        wait $! || failed=1
    done
    return $failed
}
beside >"$others" 2>&1 &
pid=$!
trap 'kill $pid 2>/dev/null || true; rm -f "$others"' EXIT
failed=0
python -m pytest tests/integration || failed=1
python -m pytest tests/faults || failed=1
wait $pid || failed=1
trap 'rm -f "$others"' EXIT
echo "--- unit, contract and browser tests"
cat "$others"
exit $failed
