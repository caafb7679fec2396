#!/usr/bin/env bash
# Looks the pinned requirements up in a database of known vulnerabilities, and fails where one is found.
#
#   bash scripts/audit.sh              asks PyPI's, with pip-audit in its own folder: needs a network
#   bash scripts/audit.sh DIR          reads DIR, a checkout of https://github.com/pypa/advisory-database: needs none
#
# Lines of requirements/ without a pin (==) are chosen by your own installation; run `pip-audit` in it for these.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
files=(requirements/*.txt)
python=$root/.venv/bin/python # has PyYAML
[ -x "$python" ] || python=python3
torch=torch==2.13.0 # scripts/setup.sh installs its CPU build
[ $# -eq 0 ] || exec "$python" scripts/audit.py "$1" "${files[@]}" <(echo "$torch")

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pip-audit==2.10.1
failed=0

audit() { # audit PYTHON FILE: the pins that count under it; pip-audit refuses a name with two pins, as two files may have
    local minor=$1 pins=$folder/pins.txt
    "$folder/venv/bin/python" scripts/audit.py --pins "$minor" "$2" >"$pins"
    echo "--- pins of ${2##*/} for Python $minor: $(wc -l <"$pins")"
    # strict: else a pin that the database cannot be asked about counts as fine
    timeout 900 "$folder/venv/bin/pip-audit" --strict --disable-pip --no-deps -r "$pins" || failed=1
}

echo "$torch" >"$folder/torch.txt"
for file in "${files[@]}" "$folder/torch.txt"; do
    case $file in
        *machine-torch211.txt) continue ;; # what a machine has already
        *gpu-torch211.txt) minors=3.12 ;;
        *gpu-torch213.txt) minors='3.10 3.11 3.12' ;;
        *) minors='3.10 3.11 3.12 3.13' ;;
    esac
    for minor in $minors; do audit "$minor" "$file"; done
done
exit $failed
