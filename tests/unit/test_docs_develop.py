"""docs/develop.md names rooms, files and functions: they exist, under these names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import openrlhf_ebpo
from openrlhf_ebpo.upstream.stack import module_path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/develop.md").read_text()
WAY = PAGE.partition("## The path of one reward")[2].partition("\n## ")[0]
OURS = [path for place in ("openrlhf_ebpo", "eval", "space/ebpo_space") for path in ROOT.joinpath(place).rglob("*.py")]
NO_CODE = {"client_states"}
CODE = re.compile(r"`([\w/]+)`").findall
PLACES = ("openrlhf_ebpo", "openrlhf_ebpo/rewards", "openrlhf_ebpo/train", ".")


def defined(path: Path) -> Iterator[str]:
    """Constants, functions, classes, their methods, and Class.method."""
    for node in ast.parse(path.read_text()).body:
        yield from (target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
            for member in node.body:
                if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield from (member.name, f"{node.name}.{member.name}")


def test_every_room_is_in_the_tree_of_the_page_and_of_the_package():
    """tests/unit/test_rooms.py says who may import whom."""
    tree = ast.parse((ROOT / "tests/unit/test_rooms.py").read_text())
    assigned = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
    rooms = {ast.literal_eval(key).replace(".", "/") for key in assigned["MAY_IMPORT"].keys}
    folders = PAGE.partition("## The tree")[2].partition("\n## ")[0]
    named = {
        name
        for first in re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", folders, re.MULTILINE)
        for name in CODE(first)
    }
    assert rooms <= named
    assert [room for room in rooms if f"{room.rpartition('/')[2]}/" not in openrlhf_ebpo.__doc__] == []


def test_every_file_that_the_page_names_is_there():
    """The doors of the processes in the picture, and what relies on upstream without a fingerprint."""
    named = set(re.findall(r"<br/>([\w/]+\.py)|`([\w/]+/(?:\w+\.py)?)`", PAGE))
    named = {name for pair in named for name in pair if name}
    assert len(named) > 30
    assert [name for name in named if not any((ROOT / place / name).exists() for place in PLACES)] == []


def test_every_file_that_the_way_names_is_there():
    known = [path.relative_to(ROOT).as_posix() for path in OURS]
    named = set(re.findall(r"`([\w/]+\.py)`", WAY))
    assert len(named) > 10
    assert [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in known)] == []


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # in upstream's own texts
def test_every_function_that_the_way_names_is_there():
    upstream = module_path("openrlhf").parent.rglob("*.py")
    known = {name for path in (*OURS, *upstream) for name in defined(path)}
    named = set(re.findall(r"`([A-Za-z_]\w*(?:\.\w+)?)`", WAY)) - NO_CODE
    named = {name for name in named if not name.endswith((".py", ".json", ".jsonl"))}
    assert len(named) > 15
    assert named - known == set()
