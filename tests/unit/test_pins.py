"""The pins for a GPU with torch 2.11 are what is wanted, and what the seams are held against."""

from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from openrlhf_ebpo.upstream import releases

REQUIREMENTS = Path(__file__).parents[2] / "requirements"


def read(name: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in (REQUIREMENTS / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def versions(name: str) -> dict[str, str]:
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in read(name)}


def test_the_pins_are_what_is_wanted_and_what_the_seams_are_held_against():
    pins = versions("gpu-torch211.txt")
    for requirement in read("gpu-torch211.in"):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
    assert pins["openrlhf"] == releases.RECOMMENDED
    for name, version in releases.VERSIONS_BY_TORCH[pins["torch"]].items():
        assert pins[name] == version
    machine = versions("machine-torch211.txt")
    assert {name: pins[name] for name in machine} == machine
    left_out = {canonicalize_name(each.name) for each in read("gpu-torch211.overrides") if each.marker}
    assert "flash-attn" in left_out and not left_out & set(pins)
