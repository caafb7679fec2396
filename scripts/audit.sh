#!/usr/bin/env bash
# Looks the pinned requirements up in a database of known vulnerabilities, and fails where one is found.
#
#   bash scripts/audit.sh              asks PyPI's, with pip-audit in a folder of its own: needs a network
#   bash scripts/audit.sh DIR          reads DIR, a checkout of https://github.com/pypa/advisory-database: needs none
#
# Lines of requirements/ that are no pins (==) are what your own installation chooses; `pip-audit` in it looks at these.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
files=(requirements/*.txt space/requirements.txt)
python=$root/.venv/bin/python # has PyYAML
[ -x "$python" ] || python=python3
torch=torch==2.13.0 # scripts/setup.sh installs its CPU build
[ $# -eq 0 ] || exec "$python" scripts/audit.py "$1" "${files[@]}" <(echo "$torch")

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pip-audit==2.10.1
grep -hE '^[A-Za-z0-9._-]+(\[[^]]*\])?==' "${files[@]}" | sort -u >"$folder/all.txt"
echo "$torch" >>"$folder/all.txt"
failed=0
while read -r minor; do # a name has another pin for another Python
    "$folder/venv/bin/python" scripts/audit.py --pins "$minor" "$folder/all.txt" >"$folder/$minor.txt"
    echo "--- pins for Python $minor: $(wc -l <"$folder/$minor.txt")"
    # strict: else a pin that the database cannot be asked about counts as fine
    timeout 900 "$folder/venv/bin/pip-audit" --strict --disable-pip --no-deps -r "$folder/$minor.txt" || failed=1
done < <(printf '%s\n' 3.10 3.11 3.12 3.13)
exit $failed
