#!/usr/bin/env bash
# Collects what a GPU machine without a network lacks: wheels in parts of at most 60 MB, and the script that installs them there.
#
#   bash scripts/make_wheelhouse.sh [DIR] [MACHINE]
#
#   DIR       where they go (default: wheelhouse); what is there already, and right, is not fetched again
#   MACHINE   what that machine has, the output of `python3 -m pip list --format=freeze` there
#             (default: requirements/machine-torch211.txt, the least)
#
# For machines that come with Python 3.12 and torch 2.11 for CUDA 13, on x86-64. Here it needs Linux on x86-64, Python 3.12 and its
# pip, 23.2 or newer (PYTHON names the Python), and the package index that pip is set to. Then copy DIR/parts to the machine, and
# type there: bash install.sh VENV (docs/gpu.md).
set -euo pipefail

fail() {
    echo "error: $*" >&2
    exit 1
}

case ${1:-} in
-h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0" && exit ;;
-*) echo "error: no such flag: $1 (see --help)" >&2 && exit 2 ;;
esac

find_python() { # a name on PATH may be one that only says that it is not there
    local candidate
    for candidate in ${PYTHON:-python3.12 python3 python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$(find_python) || fail "no Python 3.12 was found${PYTHON:+ at PYTHON=$PYTHON}, and the machine's wheels are chosen by it. Install one, for example with \`uv python install 3.12\` or pyenv, and name it: PYTHON=/path/to/python3.12 bash $0 $*"
"$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip: $python -m ensurepip"
[ $# -lt 2 ] || [ -f "$2" ] || fail "$2 is no file; make it on the machine with: python3 -m pip list --format=freeze >FILE"
exec "$python" "$root/scripts/wheelhouse.py" collect "${1:-wheelhouse}" ${2:+--machine "$2"}
