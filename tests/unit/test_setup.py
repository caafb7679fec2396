"""scripts/setup.sh on a machine that lacks something: named, or installed, before anything is downloaded."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
TOOLS = "bash awk cat chmod cp df dirname echo mktemp rm sed sha256sum uname xargs"
PYTHON = """#!/bin/bash
# A Python 3.11 of a minimal system: `broken` lists what it lacks.
case "$*" in
    *"import ctypes"*) exit {libnuma} ;;
    *"import ensurepip"*) exit {venv} ;;
    *"%d.%d"*) echo python3.11-venv ;;
    *"-m venv"*) echo "no venv is made in this test" >&2; exit 1 ;;
    "-") exit 1 ;;
esac
"""


@pytest.fixture
def machine(tmp_path):
    """A folder `bin` that is all of PATH, and a checkout with the scripts. Returns a function that calls the
    quickstart."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for tool in TOOLS.split():
        (bin / tool).symlink_to(shutil.which(tool))
    shutil.copytree(SCRIPTS, tmp_path / "checkout" / "scripts")
    (tmp_path / "checkout" / "requirements").mkdir()
    for name in ("requirements/cpu.txt", "pyproject.toml"):
        (tmp_path / "checkout" / name).write_text("")

    def call(user: int) -> str:
        program(bin / "id", f"#!/bin/bash\necho {user}\n")
        script = tmp_path / "checkout" / "scripts" / "quickstart.sh"
        done = subprocess.run(["bash", script], env={"PATH": str(bin)}, capture_output=True, text=True)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout + done.stderr

    call.bin = bin
    return call


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def python(path: Path, libnuma: bool = True, venv: bool = True) -> None:
    program(path, PYTHON.format(libnuma=int(not libnuma), venv=int(not venv)))


@pytest.mark.parametrize(
    ("has", "packages"),
    [
        ({"libnuma": False}, "libnuma1"),
        ({"venv": False}, "python3.11-venv"),
        ({"libnuma": False, "venv": False}, "python3.11-venv libnuma1"),
    ],
)
def test_an_ordinary_user_is_told_the_one_line_to_type(machine, has, packages):
    python(machine.bin / "python3.11", **has)
    program(machine.bin / "apt-get", "#!/bin/bash\necho must not be called\n")
    text = machine(user=1000)
    assert f"\n  apt-get update && apt-get install -y {packages}\n" in text
    assert "must not be called" not in text


def test_root_gets_what_is_lacking_and_goes_on(machine, tmp_path):
    bin, calls = machine.bin, tmp_path / "calls"
    python(bin / "new_python", libnuma=True)
    program(bin / "apt-get", f"#!/bin/bash\necho $* >>{calls}\ncp {bin}/new_python {bin}/python3\n")
    text = machine(user=0)
    first, second = calls.read_text().splitlines()
    assert first == "update -qq" and second.startswith("install -y -qq python3 python3-venv")
    assert "no venv is made in this test" in text  # what lacked is installed, so the set-up continued


def test_other_systems_are_told_what_to_look_for(machine):
    python(machine.bin / "python3.11", libnuma=False)
    assert "libnuma.so.1" in machine(user=1000)
    program(machine.bin / "dnf", "#!/bin/bash\n")
    assert "dnf install -y numactl-libs\n" in machine(user=1000)
    (machine.bin / "python3.11").unlink()
    assert "dnf install -y python3.12" in machine(user=1000)


def test_a_system_with_another_python_is_told_which_are_needed(machine):
    program(machine.bin / "python3", '#!/bin/bash\n[ "$1" = --version ] && echo Python 3.9.2\n[ "$1" = --version ]\n')
    program(machine.bin / "apt-get", "#!/bin/bash\n")
    text = machine(user=0)
    assert "3.10 to 3.13" in text and "3.9.2" in text


def test_its_help_and_a_mistyped_word_start_nothing():
    for word, status in (("--help", 0), ("--force", 2)):
        done = subprocess.run(
            ["bash", SCRIPTS / "setup.sh", word], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
        )
        assert done.returncode == status and "bash scripts/setup.sh && . .venv/bin/activate" in done.stdout
        assert "environment" not in done.stderr.lower()
