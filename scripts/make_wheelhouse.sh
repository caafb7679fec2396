#!/usr/bin/env bash
# Collects the packages that a GPU machine without a network lacks: wheels in parts of at most 60 MB, and an install script.
#
#   bash scripts/make_wheelhouse.sh [DIR] [MACHINE]
#
#   DIR       where they go (default: wheelhouse); existing files are not downloaded again
#   MACHINE   what that machine has, the output of `python3 -m pip list --format=freeze` there
#             (default: requirements/machine-torch211.txt, the least that it must have)
#
# For machines that come with Python 3.12 and torch 2.11 for CUDA 13, on x86-64. This script needs Linux on x86-64, Python 3.12
# with pip (PYTHON names another one), and a package index. Then copy DIR/parts to the machine, and type there:
# bash install.sh VENV, which sees the packages of the machine's Python and changes none.
set -euo pipefail

fail() {
    echo "error: $*" >&2
    exit 1
}

case ${1:-} in
-h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0" && exit ;;
-*) echo "error: no such flag: $1 (see --help)" >&2 && exit 2 ;;
esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-wheelhouse} machine=${2:-$root/requirements/machine-torch211.txt} pins=$root/requirements/gpu-torch211.txt
[ -f "$machine" ] || fail "$machine is not a file; make it on the machine with: python3 -m pip list --format=freeze >FILE"
python=${PYTHON:-python3.12}
[[ $("$python" -c 'import platform as p; print(p.python_version(), p.system(), p.machine())' 2>&1) == 3.12.*" Linux x86_64" ]] ||
    fail "$python is not Python 3.12 on Linux and x86-64: PYTHON=/path/to/python3.12 bash $0 $*"

pinned() { sed -n 's/^\([A-Za-z0-9][^ ]*\).*/\1/p' "$1" | sed 's/+.*//' | tr '[:upper:]_' '[:lower:]-' | sort; } # a local part (+cu130) is not on the index
torch=$(pinned "$machine" | grep '^torch==' || true)
[ -z "$torch" ] || pinned "$pins" | grep -qx "$torch" ||
    fail "$machine has $torch, and this set is for $(pinned "$pins" | grep '^torch=='): vLLM is built for one torch alone (docs/gpus.md)"

mkdir -p "$folder"
comm -23 <(pinned "$pins") <(pinned "$machine") >"$folder/lacking.new"
cmp -s "$folder/lacking.new" "$folder/lacking.txt" || rm -rf "$folder/wheels" # wheels of an earlier list would be packed too
mv "$folder/lacking.new" "$folder/lacking.txt" && mkdir -p "$folder/wheels"
pip() { "$python" -m pip --disable-pip-version-check "$@" --no-deps; }
# these have no wheel on the index; DeepSpeed compiles its operators where they are used
from_source='^(cellpylib|deepspeed|zss)=='
! grep -qE "$from_source" "$folder/lacking.txt" || DS_BUILD_OPS=0 DS_ENABLE_NINJA=0 pip wheel -q -w "$folder/wheels" -r <(grep -E "$from_source" "$folder/lacking.txt") ||
    fail "pip could not build a wheel; the lines above say why"
tags=()
for minor in $(seq 35 -1 5); do tags+=(--platform "manylinux_2_${minor}_x86_64"); done # glibc 2.35: Ubuntu 22.04
for tag in manylinux2014_x86_64 linux_x86_64; do tags+=(--platform "$tag"); done
pip download -d "$folder/wheels" --only-binary :all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
    "${tags[@]}" -r <(grep -vE "$from_source" "$folder/lacking.txt") || fail "pip could not download everything; repeat the command to resume"
rm -f "$folder"/wheels/openrlhf_ebpo-*.whl
pip wheel -q -w "$folder/wheels" "$root"

rm -rf "$folder/parts" && mkdir "$folder/parts"
tar -C "$folder/wheels" --sort=name --mtime=@0 --owner=0 --group=0 --mode=644 -cf - . | split -b 60MB -d -a 3 - "$folder/parts/wheels.tar."
cp "$root/scripts/wheelhouse_install.sh" "$folder/parts/install.sh"
(cd "$folder/parts" && sha256sum wheels.tar.* install.sh >SHA256SUMS)
echo "$(find "$folder/parts" -name 'wheels.tar.*' | wc -l) parts of at most 60 MB: $folder/parts. Copy them to the machine and type there: bash install.sh VENV"
