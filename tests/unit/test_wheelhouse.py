"""Which wheels travel to a machine without a network, in which parts, and how they are put together there."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import setuptools  # noqa: F401  before pip, whose packaging the script takes: it turns setuptools' own distutils off

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "wheelhouse.py"
spec = importlib.util.spec_from_file_location("wheelhouse", SCRIPT)
wheelhouse = importlib.util.module_from_spec(spec)
sys.modules["wheelhouse"] = wheelhouse  # dataclasses look there
spec.loader.exec_module(wheelhouse)
Package, Requirement = wheelhouse.Package, wheelhouse.Requirement
PINS = {
    package.name: package
    for package in (
        Package("torch", "2.11.0", ("numpy", "nvidia-nccl==2.28", "sympy")),
        Package("nvidia-nccl", "2.28"),
        Package("sympy", "1.14"),
        Package("numpy", "2.4.1"),
        Package("scipy", "0.65.0", ("numpy<2.5", 'old; python_version < "3"')),
        Package("vllm", "0.24.0", ("torch==2.11.0", "scipy==0.65.0", "flashinfer-python==0.6.12")),
        Package("ray", "2.55.0", ("click", 'grpcio>=1; extra == "default"')),
        Package("click", "8.5"),
        Package("grpcio", "1.85"),
    )
}
WANTED = [Requirement("vllm==0.24.0"), Requirement("ray[default]==2.55.0")]


def lacking(machine: dict[str, str], wanted=WANTED, pins=PINS) -> list[str]:
    chosen = wheelhouse.lacking(wanted, pins, machine)
    assert wheelhouse.unsatisfied(wanted, chosen, machine) == []
    return list(chosen)


def test_what_the_machine_has_stays_with_all_that_it_brought_along():
    assert lacking({"torch": "2.11.0", "numpy": "2.4.9"}) == ["click", "grpcio", "ray", "scipy", "vllm"]
    assert "sympy" in lacking({})


def test_a_package_that_somebody_needs_in_another_version_travels_too():
    """The machine's torch is content with its numpy; scipy is not."""
    assert "numpy" in lacking({"torch": "2.11.0", "numpy": "2.5.2"})
    assert "torch" in lacking({"torch": "2.10.0", "numpy": "2.4.9"})


def test_of_a_package_that_stays_its_extra_travels():
    assert lacking({"ray": "2.55.0"}, [Requirement("ray[default]")]) == ["grpcio"]


def test_what_is_left_out_and_what_is_for_another_python_is_not_asked_for():
    assert {"flashinfer-python", "old"}.isdisjoint(lacking({}))


def test_what_nobody_has_is_named_with_who_asks_for_it():
    pins = {**PINS, "scipy": Package("scipy", "0.65.0", ("numpy<2", "llvmlite"))}
    with pytest.raises(wheelhouse.WheelhouseError) as error:
        lacking({}, pins=pins)
    assert "llvmlite (for scipy==0.65.0): pinned is nothing" in str(error.value)
    assert "numpy<2 (for scipy==0.65.0): pinned is 2.4.1" in str(error.value)


def test_what_would_be_missing_there_is_found_without_the_resolver():
    assert wheelhouse.unsatisfied([Requirement("ray==2.54")], {"scipy": PINS["scipy"]}, {"ray": "2.55.0"}) == [
        "ray==2.54 (for wanted)",
        "numpy<2.5 (for scipy==0.65.0)",
    ]


def test_a_machines_list_is_read_without_local_versions(tmp_path):
    file = tmp_path / "machine.txt"
    file.write_text("# a machine\ntorch==2.11.0+cu130\nTyping_Extensions==4.16.0  # a note\n\n")
    assert wheelhouse.read_versions(file) == {"torch": "2.11.0", "typing-extensions": "4.16.0"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("torch @ file:///wheels/torch.whl", "names no version. On the machine: python3 -m pip list --format=freeze"),
        ("torch", "torch names no version"),
        ("-e git+ssh://somewhere", "is no requirement"),
    ],
)
def test_a_line_that_names_no_version_is_told_with_what_to_type(tmp_path, line, found):
    file = tmp_path / "machine.txt"
    file.write_text(f"numpy==2.4.1\n{line}\n")
    with pytest.raises(wheelhouse.WheelhouseError, match=found):
        wheelhouse.read_versions(file)


def test_another_torch_is_refused(tmp_path):
    wheelhouse.check_torch({"torch": "2.11.0"}, {"torch": "2.11.0"}, tmp_path)
    with pytest.raises(wheelhouse.WheelhouseError, match=r"the machine has torch 2\.10\.0, and this set is for torch"):
        wheelhouse.check_torch({"torch": "2.10.0"}, {"torch": "2.11.0"}, tmp_path)


def test_small_wheels_are_fetched_together_and_large_ones_alone():
    sizes = {"a": 50_000_000, "b": 9_000_000, "c": 280_000_000, "d": 1}
    found = wheelhouse.batches([Package(name, "1") for name in sizes], sizes)
    assert [[package.name for package in batch] for batch in found] == [["a", "b"], ["c"], ["d"]]


def test_a_wheel_that_is_there_and_right_is_not_fetched_again(tmp_path, monkeypatch):
    (tmp_path / "there-1+x-py3-none-any.whl").write_bytes(b"wheel")
    (tmp_path / "damaged-1-py3-none-any.whl").write_bytes(b"whee")
    right = hashlib.sha256(b"wheel").hexdigest()
    packages = [
        Package("there", "1+x", url=f"{tmp_path.as_uri()}/there-1%2Bx-py3-none-any.whl", sha256=right),
        Package("damaged", "1", url=f"{tmp_path.as_uri()}/damaged-1-py3-none-any.whl", sha256=right),
    ]
    called = []

    def pip(*arguments, **_):
        called.append([word for word in arguments if " @ " in word])
        (tmp_path / "damaged-1-py3-none-any.whl").write_bytes(b"wheel")

    monkeypatch.setattr(wheelhouse, "pip", pip)
    assert [path.name[:5] for path in wheelhouse.fetch(packages, tmp_path)] == ["there", "damag"]
    assert called == [[f"damaged @ {packages[1].url}#sha256={right}"]]
    monkeypatch.setattr(wheelhouse, "pip", lambda *_, **__: (tmp_path / "damaged-1-py3-none-any.whl").write_bytes(b"?"))
    (tmp_path / "damaged-1-py3-none-any.whl").unlink()
    with pytest.raises(wheelhouse.WheelhouseError, match="damaged==1: what came is not what the index announced"):
        wheelhouse.fetch(packages, tmp_path)


def test_what_the_index_says_is_asked_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(wheelhouse, "report", lambda pins, *_: asked.append(pins) or [PINS["scipy"]])
    kept = tmp_path / "packages.json"
    for versions in ({"scipy": "0.65.0"}, {"scipy": "0.65.0"}, {"scipy": "0.66.0"}):
        assert wheelhouse.described(versions, tmp_path, kept) == {"scipy": PINS["scipy"]}
    assert asked == [["scipy==0.65.0"], ["scipy==0.66.0"]]
    kept.write_text("{")
    assert wheelhouse.described({"scipy": "0.66.0"}, tmp_path, kept) == {"scipy": PINS["scipy"]}


def packed(folder: Path, sizes=(70_000, 130_000, 10)) -> list[Path]:
    folder.mkdir()
    files = [folder / f"wheel{i}-1-py3-none-any.whl" for i in range(len(sizes))]
    for i, (file, size) in enumerate(zip(files, sizes, strict=True)):
        file.write_bytes(bytes([i]) * size)
    return files


def test_parts_are_small_and_the_same_each_time_and_give_the_wheels_back(tmp_path):
    files = packed(tmp_path / "wheels")
    names = wheelhouse.pack(files, tmp_path / "parts", size=60_000)
    parts = [tmp_path / "parts" / name for name in names]
    assert len(parts) > 3 and all(part.stat().st_size <= 60_000 for part in parts)
    sums = (tmp_path / "parts" / "SHA256SUMS").read_text()
    files[0].touch()
    assert wheelhouse.pack(files[::-1], tmp_path / "parts", size=60_000) == names
    assert (tmp_path / "parts" / "SHA256SUMS").read_text() == sums
    joined = tmp_path / "joined.tar"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(joined) as archive:
        assert {entry.name: archive.extractfile(entry).read() for entry in archive} == {
            file.name: file.read_bytes() for file in files
        }


def install(parts: Path, venv: Path, python: str = sys.executable) -> subprocess.CompletedProcess:
    command = ["bash", str(parts / "install.sh"), str(venv)]
    return subprocess.run(command, env={"PATH": "/usr/bin:/bin", "PYTHON": python}, capture_output=True, text=True)


def test_there_another_python_is_refused(tmp_path):
    wheelhouse.pack(packed(tmp_path / "wheels"), tmp_path / "parts", size=60_000)
    other = tmp_path / "python"
    other.write_text('#!/bin/sh\necho "3.9.1 Linux x86_64"\n')
    other.chmod(0o755)
    done = install(tmp_path / "parts", tmp_path / "venv", str(other))
    assert done.returncode == 1 and "these wheels are for Python 3.12 on Linux and x86-64" in done.stderr
    assert "is 3.9.1 Linux x86_64" in done.stderr and not (tmp_path / "venv").exists()
    done = install(tmp_path / "parts", tmp_path / "venv", "no-such-python")
    assert done.returncode == 1 and "there is no no-such-python" in done.stderr


def test_there_a_part_that_is_missing_or_damaged_is_named(tmp_path):
    names = wheelhouse.pack(packed(tmp_path / "wheels"), tmp_path / "parts", size=60_000)
    (tmp_path / "parts" / names[0]).unlink()
    (tmp_path / "parts" / names[2]).write_bytes(b"damaged")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "3.12.3 Linux x86_64"\n')
    python.chmod(0o755)
    done = install(tmp_path / "parts", tmp_path / "venv", str(python))
    assert done.returncode == 1 and f"{names[0]} {names[2]}. Copy these again" in done.stderr
    (tmp_path / "venv").mkdir()
    done = install(tmp_path / "parts", tmp_path / "venv", str(python))
    assert done.returncode == 1 and "exists and was not made by this script" in done.stderr


def test_without_python_3_12_it_says_what_to_do(tmp_path):
    command = ["bash", str(ROOT / "scripts" / "make_wheelhouse.sh"), str(tmp_path / "wheelhouse")]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": "no-such-python"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "no Python 3.12 was found at PYTHON=no-such-python" in done.stderr
    assert not (tmp_path / "wheelhouse").exists()


@pytest.mark.parametrize(
    ("version", "pip", "found"),
    [
        ((3, 11, 9), "24.0", "this needs Python 3.12"),
        ((3, 12, 3), "23.1.2", "this needs pip 23.2 or newer; this is 23.1.2"),
        ((3, 12, 3), "26.1.dev0", None),
    ],
)
def test_what_is_too_old_is_told(monkeypatch, version, pip, found):
    import pip as installed

    monkeypatch.setattr(wheelhouse.sys, "version_info", version)
    monkeypatch.setattr(installed, "__version__", pip)
    if found is None:
        return wheelhouse.check_tools()
    with pytest.raises(wheelhouse.WheelhouseError, match=found):
        wheelhouse.check_tools()


def test_the_pins_are_what_is_wanted_and_what_the_seams_are_held_against():
    from openrlhf_ebpo.seams import releases

    pins = wheelhouse.read_versions(wheelhouse.PINS)
    for requirement in wheelhouse.read_requirements(wheelhouse.WANTED):
        assert wheelhouse._fits(requirement, pins[wheelhouse.canonicalize_name(requirement.name)]), requirement
    assert pins["openrlhf"] == releases.RECOMMENDED
    for name, version in releases.BESIDE_TORCH[pins["torch"]].items():
        assert pins[name] == version
    machine = wheelhouse.read_versions(wheelhouse.MACHINE)
    assert {name: pins[name] for name in machine} == machine
    assert not set(pins) & set(wheelhouse.LEFT_OUT["vllm"])
