#!/usr/bin/env bash
# Sets up everything and passes all tests: style, unit, contract, browser, integration.
#
#   bash scripts/test.sh [pytest arguments]
#
# Without arguments the unit and contract tests run beside the integration tests, which wait for processes to start; the
# tests of the page come after them, since a busy machine makes a browser slow.
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
python -m pytest tests/unit tests/contract >"$others" 2>&1 &
pid=$!
trap 'kill $pid 2>/dev/null || true; rm -f "$others"' EXIT
failed=0
python -m pytest tests/integration || failed=1
wait $pid || failed=1
trap 'rm -f "$others"' EXIT
echo "--- unit and contract tests"
cat "$others"
python -m pytest tests/browser || failed=1
exit $failed
