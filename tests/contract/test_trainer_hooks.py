"""The published wheels of TRL and verl still have what integrations/ replaces and calls, unchanged."""

import ast
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from network import unreachable

HOOKS = json.loads((Path(__file__).parents[1] / "data" / "trainer_hooks.json").read_text())


@pytest.fixture(scope="module", params=HOOKS)
def wheel(request, tmp_path_factory) -> tuple[str, zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder)]
    done = subprocess.run([*pip, request.param], capture_output=True, text=True)
    if done.returncode:
        unreachable(f"pip cannot download {request.param}: {done.stderr[-300:]}")
    return request.param, zipfile.ZipFile(next(folder.glob("*.whl")))


def fingerprint(source: str, name: str) -> str:
    """Of a function's code without its docstring, by its dotted name."""
    node = ast.parse(source)
    for part in name.split("."):
        node = next(each for each in node.body if getattr(each, "name", None) == part)
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
        node.body = node.body[1:]
    return hashlib.sha256(ast.unparse(node).encode()).hexdigest()[:16]


def test_the_hooks_are_as_they_were(wheel):
    release, archive = wheel
    found = {
        place: fingerprint(archive.read(place.split(":")[0]).decode(), place.split(":")[1]) for place in HOOKS[release]
    }
    assert found == HOOKS[release], (
        "read the changed function, then openrlhf_ebpo/integrations/, then write the new fingerprint here"
    )
