#!/usr/bin/env bash
# Sets up everything on a fresh machine, trains a tiny model with EBPO and with GRPO through the whole stack, and compares.
#
#   bash scripts/quickstart.sh [RUN_DIR] [--estimators NAME ...] [--force]      RUN_DIR: default runs/quickstart
#
# Under ten minutes on two cores, no GPU needed. Again on a finished run: prints its table. On an interrupted one: goes
# on. --estimators ebpo score_weighted rloo: these instead; one that RUN_DIR lacks is added to those that are there.
# --force: moves what is there aside and starts anew.
set -euo pipefail
case " $* " in *" --help "* | *" -h "*) sed -n '2,9s/^# \{0,1\}//p' "$0" && exit ;; esac
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec python -m openrlhf_ebpo.quickstart "$@"
