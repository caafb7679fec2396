#!/usr/bin/env bash
# Sets up everything on a fresh machine, trains a tiny model with EBPO and with GRPO through the complete stack, and compares.
#
#   bash scripts/quickstart.sh [RUN_DIR] [--force]      RUN_DIR: default runs/quickstart
#
# Takes five to eight minutes on two fast cores, 15 on slow ones; no GPU needed. Repeat the command to resume an
# interrupted run, or to print the table of a finished one. --force: moves an existing run aside and starts over.
set -euo pipefail
case " $* " in *" --help "* | *" -h "*) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit ;; esac
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec python -m openrlhf_ebpo.quickstart "$@"
