"""The published wheels of other trainers still have what integrations/ replaces and calls: the pinned ones unchanged,
the other releases of TRL by name."""

import ast
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from network import unreachable

HOOKS = json.loads((Path(__file__).parents[1] / "data" / "trainer_hooks.json").read_text())


def downloaded(release: str, folder: Path) -> zipfile.ZipFile:
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder)]
    done = subprocess.run([*pip, release], capture_output=True, text=True)
    if done.returncode:
        unreachable(f"pip cannot download {release}: {done.stderr[-300:]}")
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def rare(release: str):
    return pytest.param(release, marks=pytest.mark.nightly)  # daily: unit/test_trainer_mixins.py


@pytest.fixture(scope="module", params=[name if name.startswith(("trl", "verl")) else rare(name) for name in HOOKS])
def wheel(request, tmp_path_factory) -> tuple[str, zipfile.ZipFile]:
    return request.param, downloaded(request.param, tmp_path_factory.mktemp("wheel"))


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


@pytest.mark.nightly  # published wheels do not change; daily: contract/test_trainer_hooks.py has the newest one's code
@pytest.mark.parametrize("release", ["trl==1.0.0", "trl==1.9.0", "trl==1.15.0", "trl>=1.16,<2"])
def test_other_releases_of_trl_have_the_hooks(release, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", ModuleType("trl"))
    from openrlhf_ebpo.integrations.trl import HOOKS, EBPOMixin, missing_hooks

    monkeypatch.delitem(sys.modules, "openrlhf_ebpo.integrations.trl")
    source = downloaded(release, tmp_path).read("trl/trainer/grpo_trainer.py").decode()
    trainer = next(node for node in ast.parse(source).body if getattr(node, "name", None) == "GRPOTrainer")
    methods = [node for node in trainer.body if getattr(node, "name", None) in HOOKS]
    for method in methods:
        method.decorator_list, method.returns = [], None
        for argument in ast.walk(method.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        method.args.defaults = [ast.Constant(None) for _ in method.args.defaults]
    names = {}
    exec(compile(ast.fix_missing_locations(ast.Module(methods, [])), release, "exec"), {}, names)
    assert missing_hooks(type("Mixed", (EBPOMixin, type("GRPOTrainer", (), names)), {})) == []
