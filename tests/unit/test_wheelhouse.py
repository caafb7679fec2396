"""Wheels for a machine without a network: the pins, the parts, and what is refused before anything is fetched or installed."""

import os
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from openrlhf_ebpo.seams import releases

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"


def read(name: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in (REQUIREMENTS / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def versions(name: str) -> dict[str, str]:
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in read(name)}


def stand_in(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def bash(script: Path, *words: Path | str, **environment) -> subprocess.CompletedProcess:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(script.parent), **environment}
    return subprocess.run(["bash", script, *words], env=environment, capture_output=True, text=True)


def test_the_pins_are_what_is_wanted_and_what_the_seams_are_held_against():
    pins = versions("gpu-torch211.txt")
    for requirement in read("gpu-torch211.in"):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
    assert pins["openrlhf"] == releases.RECOMMENDED
    for name, version in releases.BESIDE_TORCH[pins["torch"]].items():
        assert pins[name] == version
    machine = versions("machine-torch211.txt")
    assert {name: pins[name] for name in machine} == machine
    left_out = {canonicalize_name(each.name) for each in read("gpu-torch211.overrides") if each.marker}
    assert "flash-attn" in left_out and not left_out & set(pins)


MAKE = ROOT / "scripts" / "make_wheelhouse.sh"
# stands in for Python 3.12 and its pip: records what it is asked for, and leaves a wheel
PIP = """case "$*" in *"import platform"*) echo "3.12.3 Linux x86_64"; exit;; esac
while [ $# -gt 0 ]; do
    case $1 in -w | -d) head -c 70000000 /dev/zero >"$2/any-1-py3-none-any.whl";; -r) cat "$2" >>"$ASKED";; esac
    shift
done"""


@pytest.fixture
def python(tmp_path) -> dict[str, str]:
    return {"PYTHON": stand_in(tmp_path / "python", PIP), "ASKED": str(tmp_path / "asked.txt")}


def test_what_the_machine_has_in_another_version_travels_in_parts_that_are_the_same_each_time(tmp_path, python):
    machine = tmp_path / "machine.txt"
    machine.write_text("torch==2.11.0+cu130\nAbsl_Py==2.5.1\nray==2.0.0\n")
    made = bash(MAKE, tmp_path / "house", machine, **python)
    assert made.returncode == 0, made.stderr
    asked = (tmp_path / "asked.txt").read_text().splitlines()
    pins = versions("gpu-torch211.txt")
    assert set(asked) == {f"{name}=={pins[name]}" for name in pins if name not in ("torch", "absl-py")}
    parts = sorted((tmp_path / "house" / "parts").glob("wheels.tar.*"))
    assert len(parts) == 2 and all(part.stat().st_size <= 60_000_000 for part in parts)
    sums = (tmp_path / "house" / "parts" / "SHA256SUMS").read_text()
    os.utime(tmp_path / "house" / "wheels" / "any-1-py3-none-any.whl", (1, 1))
    assert bash(MAKE, tmp_path / "house", machine, **python).returncode == 0
    assert (tmp_path / "house" / "parts" / "SHA256SUMS").read_text() == sums


def test_another_torch_another_python_and_no_list_are_refused(tmp_path, python):
    machine = tmp_path / "machine.txt"
    machine.write_text("torch==2.10.0\n")
    house = tmp_path / "house"
    assert "has torch==2.10.0, and this set is for torch==2.11.0" in bash(MAKE, house, machine, **python).stderr
    assert "none.txt is not a file; make it on the machine" in bash(MAKE, house, tmp_path / "none.txt", **python).stderr
    for other in ("no-such-python", stand_in(tmp_path / "old", 'echo "3.9.1 Linux x86_64"')):
        done = bash(MAKE, house, PYTHON=other)
        assert done.returncode == 1 and f"{other} is not Python 3.12" in done.stderr
    assert not house.exists()


def test_there_another_python_and_damaged_parts_are_refused(tmp_path, python):
    made = bash(MAKE, tmp_path / "house", **python)
    assert made.returncode == 0, made.stderr
    parts, venv = tmp_path / "house" / "parts", tmp_path / "venv"
    old = stand_in(tmp_path / "old", 'echo "3.9.1 Linux x86_64"')
    assert "is: 3.9.1 Linux x86_64" in bash(parts / "install.sh", venv, PYTHON=old).stderr
    (parts / "wheels.tar.000").unlink()
    (parts / "wheels.tar.001").write_bytes(b"damaged")
    done = bash(parts / "install.sh", venv, **python)
    assert done.returncode == 1 and "wheels.tar.000" in done.stderr and "wheels.tar.001: FAILED" in done.stdout
    assert "copy these again" in done.stderr and not venv.exists()
    venv.mkdir()
    assert "exists and was not made by this script" in bash(parts / "install.sh", venv, **python).stderr
