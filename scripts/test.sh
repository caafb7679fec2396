#!/usr/bin/env bash
# Sets up everything and passes the tests: style, unit, contract, browser, integration.
#
#   bash scripts/test.sh                        the daily tests, four groups at a time: many of them wait
#   bash scripts/test.sh --all                  the nightly ones too: slow tests whose faults daily ones find as well
#   bash scripts/test.sh [pytest arguments]     these, whether daily or nightly
set -euo pipefail
case " $* " in *" --help "* | *" -h "*) sed -n '2,6s/^# \{0,1\}//p' "$0" && exit ;; esac
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
export OPENRLHF_EBPO_TEST_SLOW=${OPENRLHF_EBPO_TEST_SLOW:-4} # time limits of tests, times this: four groups keep two cores busy
ruff check .
ruff format --check .
export TIER="not nightly"
if [ "${1:-}" = --all ]; then
    TIER=""
    shift
fi
install_browser() {
    if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        echo "Installing Debian's chromium for the tests of the page ..."
        { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 || echo "chromium could not be installed: the tests of the page cannot run"
    fi
}
if [ $# -gt 0 ]; then
    install_browser
    exec python -m pytest "$@"
fi

# The longest first, but the page's tests come late: a browser is slow while trainings run, and is installed meanwhile.
groups=(
    "tests/unit/test_[h-i]*"
    "tests/integration"
    "tests/unit/test_[j-rt-z]* tests/gpu"
    "tests/contract"
    "tests/unit/test_[a-g]*"
    "tests/browser"
    "tests/unit/test_s*"
)
export LOGS=$(mktemp -d)
trap 'rm -rf "$LOGS"' EXIT

run_group() { # its output in one piece, when it has ended
    local started=$SECONDS status=0 log
    log=$(mktemp -p "$LOGS")
    [ "$1" != tests/browser ] || install_browser
    # shellcheck disable=SC2086
    python -m pytest --durations=10 -m "$TIER" $1 >"$log" 2>&1 || status=$?
    printf '%6d s  %s\n' $((SECONDS - started)) "$1" >>"$LOGS/times"
    flock "$LOGS" bash -c 'printf -- "--- %s\n" "$1"; cat "$2"' - "$1" "$log"
    return $status
}
export -f install_browser run_group
failed=0
printf '%s\0' "${groups[@]}" | xargs -0 -n 1 -P 4 bash -c 'run_group "$1"' - || failed=1
echo "--- time"
cat "$LOGS/times"
printf '%6d s  %s\n' "$SECONDS" "all of it"
exit $failed
