#!/usr/bin/env bash
# Installs the wheels in this folder into a new environment on top of this machine's Python. No network is needed.
#
#   bash install.sh VENV
#
# VENV sees the packages of this machine's Python; if both have a package, VENV's counts. The machine's Python is not changed.
# PYTHON names that Python (default: python3). The wheels stay in VENV/wheels and can be deleted.
set -euo pipefail

fail() {
    echo "error: $*" >&2
    exit 1
}

[ $# = 1 ] && [[ $1 != -* ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0" && exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) venv=$1 python=${PYTHON:-python3}
found=$("$python" -c 'import platform as p; print(p.python_version(), p.system(), p.machine())' 2>&1 || true)
[[ $found == 3.12.*" Linux x86_64" ]] ||
    fail "these wheels are for Python 3.12 on Linux and x86-64; $python is: $found. Name another with PYTHON=/path/to/python3.12"
[ ! -e "$venv" ] || [ -e "$venv/.wheelhouse" ] || fail "$venv exists and was not made by this script; name another folder"
(cd "$here" && sha256sum --check --quiet SHA256SUMS) || fail "the parts named above are missing or damaged: copy these again to $here"

"$python" -m venv --clear --without-pip "$venv" || fail "$python -m venv failed; the lines above say why"
touch "$venv/.wheelhouse"
# that Python may be in an environment itself: its packages are added by a .pth, not by --system-site-packages
"$python" -c '
import sys
print(*(f"import site; site.addsitedir({path!r})" for path in sys.path if path.endswith("-packages")), sep="\n")' \
    >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/machine.pth"
mkdir "$venv/wheels"
cat "$here"/wheels.tar.* | tar -xf - -C "$venv/wheels"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-index --no-deps --ignore-installed --no-compile \
    --no-warn-script-location "$venv"/wheels/*.whl || fail "pip could not install them; the lines above say why"
for check in "openrlhf_ebpo.upstream" "openrlhf_ebpo.cli.doctor versions libraries gpu"; do
    # shellcheck disable=SC2086
    "$venv/bin/python" -W ignore -m $check || fail "it is installed in $venv, but parts of it do not fit this machine: the lines above say which"
done
echo "done: . $venv/bin/activate"
