#!/usr/bin/env bash
# Sets up everything and passes all tests: style, unit, contract, integration.
#
#   bash scripts/test.sh [pytest arguments]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
ruff check .
ruff format --check .
exec python -m pytest "$@"
