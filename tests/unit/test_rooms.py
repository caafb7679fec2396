"""The rooms of the package, and which room may import which.

A room is a folder of openrlhf_ebpo or of its upstream/, eval/ or space/. The files are walked, not only the table:
imports in functions and for type checkers count. Replacements and commands, which are found by name, are not seen
here.
"""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pytest
from replay_runs import train

from openrlhf_ebpo.upstream.cpu.cpu_replacements import SEAMS as CPU_SEAMS
from openrlhf_ebpo.upstream.replacements import SEAMS

ROOT = Path(__file__).parents[2]
PACKAGE = "openrlhf_ebpo"
PLACES = {PACKAGE: PACKAGE, f"{PACKAGE}.eval": "eval", f"{PACKAGE}.space": "space/ebpo_space"}
BASE = {
    "chat_template",
    "command",
    "errors",
    "extension",
    "files",
    "hub_client",
    "hub_models",
    "model_folder",
    "progress",
    "redact",
}  # modules that everybody may import
PROCESSES = {"controller", "policy", "rollout"}  # folders below upstream/: each a process, and a room
MAY_IMPORT = {
    "estimator": set(),
    "run": set(),
    "integrations": {"estimator"},
    "rewards": set(),
    "upstream": {"estimator", "rewards", "run"},
    "upstream.controller": {"estimator", "rewards", "run", "upstream"},
    "upstream.policy": {"run", "upstream"},
    "upstream.rollout": {"rewards", "upstream"},
    "engines": {"rewards", "upstream"},
    "hub": {"estimator", "run"},
    "data": {"engines", "rewards", "run", "upstream"},
    "eval": {"data", "engines", "rewards", "run", "upstream"},
    "space": {"estimator", "eval", "run"},
    "quickstart": {"estimator", "eval", "run", "upstream"},
    "train": {
        *("data", "engines", "estimator", "hub", "rewards", "run"),
        *("upstream", "upstream.controller", "upstream.policy", "upstream.rollout"),
    },
    "cli": {"data", "estimator", "run", "train", "upstream"},
}
PACKAGES_OF = {  # in addition to the standard library, where that is a promise
    **{name: set() for name in BASE - {"hub_models", "model_folder"}},
    "estimator": {"numpy"},
    "hub_client": {"huggingface_hub"},
    "run": {"matplotlib", "numpy", "psutil", "pyarrow"},
}
BASE_PACKAGES = {"numpy", "psutil", "pyarrow", "safetensors", "wrapt"}
LIGHT = {*BASE, "cli", "hub", "run"}
NEED_MORE = {f"{PACKAGE}.{name}" for name in ("hub.card", "hub.run_data")}
ONLY_BASE = f"""
import importlib, sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name[0] != "_" and name.split(".")[0] not in {BASE_PACKAGES | {PACKAGE}!r} | sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{{name}} is not in the base install", name=name)
sys.meta_path.insert(0, Refused())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def modules() -> dict[str, Path]:
    found = {}
    for package, place in PLACES.items():
        for path in sorted(ROOT.joinpath(place).rglob("*.py")):
            parts = path.relative_to(ROOT / place).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def imported(module: str, path: Path) -> Iterator[str]:
    """Full names of what the module imports, in functions too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            outer = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            origin = ".".join((*outer, *filter(None, [node.module])))
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def room(name: str) -> str | None:
    """None for the package itself and its version."""
    top, _, rest = name.partition(".")
    first, *more = rest.split(".")
    if first == "upstream" and more and more[0] in PROCESSES:
        return f"{first}.{more[0]}"
    return first if top == PACKAGE and first in {*BASE, *MAY_IMPORT} else None


def is_allowed(source: str, target: str) -> bool:
    here, there = room(source), room(target)
    return there is None or there == here or there in BASE or there in MAY_IMPORT.get(here, ())


MODULES = modules()
IMPORTS = sorted({(module, name) for module, path in MODULES.items() for name in imported(module, path)})


def test_every_module_is_in_a_room_of_the_table():
    assert [name for name in MODULES if room(name) is None] == [PACKAGE]
    assert {room(name) for name in MODULES} - {None} == {*BASE, *MAY_IMPORT}


def test_rooms_import_only_what_the_table_says():
    assert [f"{source} imports {target}" for source, target in IMPORTS if not is_allowed(source, target)] == []


def test_a_replacement_lies_in_the_folder_of_its_process():
    folders = {name: f"{PACKAGE}.upstream.{name}" for name in PROCESSES} | {"every": f"{PACKAGE}.upstream"}
    lies = [(row, row.replacement.partition(":")[0].rpartition(".")[0]) for row in SEAMS]
    assert [row.replacement for row, folder in lies if folder != folders[row.process]] == []
    assert {row.replacement.rpartition(".")[0] for row in CPU_SEAMS} == {f"{PACKAGE}.upstream.cpu"}


def test_the_table_allows_nothing_that_is_not_used():
    used = {(room(source), room(target)) for source, target in IMPORTS}
    assert {(here, there) for here, rooms in MAY_IMPORT.items() for there in rooms} <= used


def test_folders_beside_the_package_are_imported_by_their_one_name():
    """eval/ and space/ebpo_space/ are openrlhf_ebpo.eval and openrlhf_ebpo.space: a class that is loaded twice is
    two."""
    folders = ("openrlhf_ebpo", "eval", "space", "tests", "benchmarks", "research", "scripts")
    files = [path for folder in folders for path in sorted(ROOT.joinpath(folder).rglob("*.py"))]
    names = {str(path.relative_to(ROOT)): set(imported("anything", path)) for path in files}
    assert len(files) > 200
    tops = {name: {each.split(".")[0] for each in found} for name, found in names.items()}
    assert [name for name, found in tops.items() if found & {"eval", "ebpo_space", "space"}] == []


def test_there_is_no_circle_among_rooms():
    graphlib.TopologicalSorter(MAY_IMPORT).prepare()  # raises CycleError, with the names


def test_there_is_no_circle_among_files():
    assert circles(file_graph(IMPORTS)) == []


def test_a_circle_of_files_is_found_wherever_the_imports_stand(tmp_path):
    texts = {
        "run.a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B\n",
        "run.b": "def f():\n    from openrlhf_ebpo.hub import c\n",
        "hub.c": "import openrlhf_ebpo.run.a\n",
        "hub.d": "from .c import f\n",
    }
    found = set()
    for name, text in texts.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        found |= {(f"{PACKAGE}.{name}", each) for each in imported(f"{PACKAGE}.{name}", path)}
    names = {f"{PACKAGE}.{name}" for name in texts}
    assert circles(file_graph(found, names)) == [[f"{PACKAGE}.{name}" for name in ("hub.c", "run.a", "run.b")]]


def file_graph(imports: Iterable[tuple[str, str]], modules: Collection[str] = MODULES) -> dict[str, set[str]]:
    """Map each module to what it imports of these, itself and the package's __init__ left out."""
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for source, target in imports:
        graph[source] |= {module(target, modules)} - {source, None, PACKAGE}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that import each other, sorted: every module of one reaches all others."""
    reach = {name: reached(graph, name) for name in graph}
    found = {
        tuple(sorted(each for each in reach[name] if name in reach[each])) for name in graph if name in reach[name]
    }
    return sorted(map(list, found))


def reached(graph: dict[str, set[str]], name: str) -> set[str]:
    """The modules that this one loads, and those that they load; itself, if it is in a circle."""
    found, new = set(), graph[name]
    while new:
        found |= new
        new = set().union(*(graph[each] for each in new)) - found
    return found


def module(name: str, modules: Collection[str] = MODULES) -> str | None:
    """Of something imported: it, or the module that it is taken from; None for what is not the project's."""
    return next((each for each in (name, name.rpartition(".")[0]) if each in modules), None)


@pytest.mark.parametrize("name", PACKAGES_OF)
def test_what_is_light_imports_only_these_packages(name):
    allowed = {PACKAGE, *PACKAGES_OF[name], *sys.stdlib_module_names}
    assert [pair for pair in IMPORTS if room(pair[0]) == name and pair[1].split(".")[0] not in allowed] == []


def test_an_import_against_the_table_is_found_wherever_it_stands(tmp_path):
    path = tmp_path / "run_log.py"
    path.write_text(
        "from openrlhf_ebpo import __version__, files\nimport ray.util\n"
        "def f():\n    from ..train.flags import fill_defaults\n    from .plot import plot_runs\n    import "
        "openrlhf_ebpo.eval.run\n"
    )
    module = f"{PACKAGE}.run.run_log"
    found = set(imported(module, path))
    assert {"ray.util", f"{PACKAGE}.files", f"{PACKAGE}.run.plot.plot_runs"} <= found
    refused = {name for name in found if not is_allowed(module, name)}
    assert refused == {f"{PACKAGE}.train.flags.fill_defaults", f"{PACKAGE}.eval.run"}


def test_the_base_install_is_enough_to_read_runs_and_for_commands_to_begin():
    names = [PACKAGE, *(name for name in MODULES if room(name) in LIGHT and name not in NEED_MORE)]
    done = subprocess.run([sys.executable, "-c", ONLY_BASE, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused = subprocess.run([sys.executable, "-c", ONLY_BASE, "torch"], capture_output=True, text=True)
    assert "torch is not in the base install" in refused.stderr


STACK = {"torch", "ray", "vllm", "openrlhf"}
LOADS = {  # code -> modules that it must not load; sys.argv[1] is a run
    "import openrlhf_ebpo.estimator.registry": {"numpy", "torch"},
    "from openrlhf_ebpo.run import run_log; from openrlhf_ebpo.estimator import advantage, config": STACK,
    "import openrlhf_ebpo.upstream.controller.rollouts, openrlhf_ebpo.upstream.policy.checkpoint": {
        *(STACK | {"deepspeed"}) - {"torch"}
    },
    "from openrlhf_ebpo.cli import main; main(['replay', sys.argv[1]])": STACK,
    "from openrlhf_ebpo.eval import paper, tasks": {
        *(STACK | {"transformers", "sympy", "math_verify", "datasets", "aiohttp"})
    },
    """from openrlhf_ebpo.space import app, main, runs, server, workspace
app.build(workspace.Workspace(runs.Runs([])))""": {*STACK, "transformers", "matplotlib"},
    """from openrlhf_ebpo.space import links
from openrlhf_ebpo.space.pages import samples, understand
understand.render(links.clean({}))""": STACK,
    f"sys.path.append({str(ROOT / 'research')!r}); import figures": {"torch", "scipy", "matplotlib", "ray"},
}


@pytest.mark.parametrize(("code", "heavy"), LOADS.items(), ids=lambda value: value if isinstance(value, str) else "")
def test_what_runs_without_the_stack_loads_none_of_it(code, heavy, tmp_path):
    train(tmp_path / "run", to=1)
    code = f"import sys\n{code}\nprint('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.rpartition("loaded ")[2].split()
    assert "openrlhf_ebpo" in loaded and not heavy & {*loaded}
