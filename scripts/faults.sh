#!/usr/bin/env bash
# Kills the processes of trainings at random moments, resumes, and checks that nothing was lost. It takes hours, and can be
# cut off and repeated.
#
#   bash scripts/faults.sh [--minutes N] [--kinds KIND ...] [--modes sync async ranks] [--kills N] [--table]     --help
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
exec python tests/faults/campaign.py "$@"
