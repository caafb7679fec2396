#!/usr/bin/env bash
# Installs the wheels that lie beside it, in parts, into a new environment on top of this machine's own Python. No network is needed.
#
#   bash install.sh VENV
#
# VENV sees all that this machine's Python has; where both have a package, VENV's own counts. Nothing of the machine is changed.
# PYTHON names that Python (default: python3). The wheels stay in VENV/wheels; delete them if you like.
set -euo pipefail

fail() {
    echo "error: $*" >&2
    exit 1
}

[ $# = 1 ] && [[ $1 != -* ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0" && exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$1
python=$(command -v "${PYTHON:-python3}") || fail "there is no ${PYTHON:-python3}: PYTHON=/path/to/python3.12 bash $0 $venv"

check_machine() {
    local found
    found=$("$python" -c 'import platform; print(platform.python_version(), platform.system(), platform.machine())')
    [[ $found == 3.12.*" Linux x86_64" ]] || fail "these wheels are for Python 3.12 on Linux and x86-64; $python is $found. Name another with PYTHON=…"
    "$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip, which installs the wheels"
    [ ! -e "$venv" ] || [ -e "$venv/.wheelhouse" ] || fail "$venv exists and was not made by this script; name another folder"
}

check_parts() { # a part that is missing or damaged is named, and only that one has to be copied again
    local bad
    bad=$(cd "$here" && { sha256sum --check --quiet SHA256SUMS 2>/dev/null || true; } | sed -n 's/: FAILED.*//p' | xargs)
    [ -z "$bad" ] || fail "missing or damaged in $here: $bad. Copy these again"
    local size free
    size=$(cat "$here"/wheels.tar.* | wc -c)
    free=$(df -PB1 "$(dirname "$(realpath -m "$venv")")" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge $((4 * size)) ] || fail "$((4 * size / 1000000)) MB of disk are needed for $venv; $((free / 1000000)) are free"
    echo "$(find "$here" -name 'wheels.tar.*' | wc -l) parts, $((size / 1000000)) MB: all there"
}

make_environment() { # a Python that is in an environment itself: its packages are added by a .pth, not by --system-site-packages
    "$python" -m venv --clear --without-pip "$venv" || fail "$python -m venv failed; the lines above say why"
    touch "$venv/.wheelhouse"
    local own
    own=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -c '
import sys
print(*(f"import site; site.addsitedir({path!r})" for path in sys.path if path.endswith("-packages")), sep="\n")' >"$own/machine.pth"
}

install_wheels() {
    mkdir "$venv/wheels"
    cat "$here"/wheels.tar.* | tar -xf - -C "$venv/wheels"
    echo "installing $(find "$venv/wheels" -name '*.whl' | wc -l) wheels into $venv; a minute or two"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-index --no-deps --ignore-installed --no-compile \
        --no-warn-script-location "$venv"/wheels/*.whl || fail "pip could not install them; the lines above say why"
}

check_installed() {
    local status=0 check
    for check in "openrlhf_ebpo.seams" "openrlhf_ebpo.cli.doctor versions libraries gpu"; do
        # shellcheck disable=SC2086
        "$venv/bin/python" -W ignore -m $check >"$venv/check.log" 2>&1 || {
            status=1
            echo "python -m $check says:"
            grep -vE '^(ok|by name) ' "$venv/check.log" || true
        }
    done
    return $status
}

check_machine
check_parts
make_environment
install_wheels
check_installed || fail "it is installed in $venv, and not all of it fits this machine: the lines above say what"
echo "done: . $venv/bin/activate"
