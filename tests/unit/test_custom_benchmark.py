"""A custom benchmark: the example outside the package, and what is wrong with others."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import score, tasks
from openrlhf_ebpo.eval.tasks import BENCHMARKS, FILES, Benchmark, HubSet

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "benchmark"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def example(here):
    for file in EXAMPLE.glob("measures.*"):
        shutil.copy(file, here)
    return here


def own(folder: Path, code: str, name: str = "mine") -> None:
    (folder / f"{name}.py").write_text(f"from openrlhf_ebpo.eval.tasks import Benchmark, HubSet, Rules\n{code}\n")


def test_the_example_is_loaded_from_its_folder_and_scored_by_its_rules(example):
    task = tasks.load_task("measures:TASK")
    assert (task.name, len(task.questions), task.skipped, task.notes) == ("measures", 8, (), ())
    assert task.source.startswith(f"{example}/measures.jsonl@")
    marathon, train, *_ = task.questions
    assert marathon.question == "How long is a marathon? Give the answer in km."
    assert (train.gold, train.rules.unit, train.rules.tolerance) == ("30", "km", 0)


def test_its_rows_can_be_of_another_file(example):
    rows = [{"question": "How long?", "value": 2, "unit": "m", "tolerance": slack} for slack in (0, -1)]
    (example / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tasks.load_task("measures:TASK=more.jsonl")
    assert task.source.startswith("more.jsonl@") and "2 rows, the public data set 8" in task.notes[0]
    assert task.skipped == ("row 2 of more.jsonl is left out: its tolerance is -1",)
    with pytest.raises(UsageError, match="measures:TASK=me/measures"):
        tasks.load_task("measures:TASK=me/measures")


def test_a_file_is_scored_by_the_rules_of_the_example(example):
    examples = [json.loads(line) for line in (example / "measures.jsonl").read_text().splitlines()]
    right = [{**row, "gold": row["value"], "response": f"\\boxed{{{row['value']}}}"} for row in examples]
    answers = [r"\boxed{42 \text{ km}}", r"\boxed{42.195 \text{ m}}", "Answer: 42.3", r"\boxed{43}", "42"]
    rows = [*right, *({**right[0], "response": answer} for answer in answers)]
    (example / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--input", "pairs.jsonl", "--output", "scored.jsonl", "--task", "measures:TASK"]
    score.main(flags)
    found = [json.loads(line) for line in (example / "scored.jsonl").read_text().splitlines()]
    assert [row["correct"] for row in found] == [True] * len(right) + [True, False, True, False, False]
    assert json.loads(found[0]["rules"]) == {"unit": "km", "tolerance": 0.2}


BAD = {
    "no module": (
        "",
        "nowhere:TASK",
        "--tasks nowhere:TASK: there is no module nowhere, neither in this folder nor on",
    ),
    "no submodule": ("", "mine.deeper:TASK", "there is no module mine.deeper"),
    "no attribute": ("TASKS = Benchmark('other')", "mine:TASK", r"mine \(\S+mine.py\) has no TASK. Did you mean TASKS"),
    "no benchmark": ("", "mine:TASK", r"mine \(\S+mine.py\) has no TASK$"),
    "wrong type": (
        "TASK = {'name': 'x'}",
        "mine:TASK",
        r"has to be an openrlhf_ebpo.eval.\S+.Benchmark, and is a builtins.dict",
    ),
    "the type itself": ("", "mine:Benchmark", "and is a builtins.type"),
    "a broken module": ("1 / 0", "mine:TASK", "importing mine failed: ZeroDivisionError: division by zero"),
    "no syntax": ("def", "mine:TASK", "importing mine failed: SyntaxError"),
    "a module that exits": ("raise SystemExit(0)", "mine:TASK", "importing mine failed: SystemExit: 0"),
    "what it imports": (
        "import nowhere_at_all",
        "mine:TASK",
        "importing mine failed: ModuleNotFoundError: .*nowhere_at_all",
    ),
    "a taken name": ("TASK = Benchmark('aime24')", "mine:TASK", "its name is aime24"),
    "a path as a name": ("TASK = Benchmark('../../etc')", "mine:TASK", r"ValueError: a benchmark's name .*'../../etc'"),
    "a limited name": ("TASK = Benchmark('x-first20')", "mine:TASK", "no -firstN at its end"),
    "no name": ("TASK = Benchmark(None)", "mine:TASK", "a benchmark's name has up to 80 letters"),
    "a copy": (
        "TASK = Benchmark('x', copies=('me/x',))",
        "mine:TASK",
        r"copies must be a tuple of HubSet or Path, not \('me",
    ),
    "a column": ("TASK = Benchmark('x', question='q')", "mine:TASK", "question must be a tuple of str, not 'q'"),
    "no data": ("TASK = Benchmark('x')", "mine:TASK", "it has no data; name a file, --tasks mine:TASK=FILE"),
    "a prompt": (
        "TASK = Benchmark('x', prompt=lambda q, row: row['no'])",
        "mine:TASK=q.jsonl",
        r"x: prompt\('Q'.* raised KeyErr",
    ),
    "an empty prompt": ("TASK = Benchmark('x', prompt=lambda q, row: '')", "mine:TASK=q.jsonl", "its prompt is empty"),
    "a gold": ("TASK = Benchmark('x', gold=int)", "mine:TASK=q.jsonl", r"x: gold\('1'\) is 1; it has to be a str"),
    "rules": ("TASK = Benchmark('x', rules=lambda row, a: {})", "mine:TASK=q.jsonl", "it has to be a Rules"),
    "a prompt that exits": (
        "TASK = Benchmark('x', prompt=lambda q, row: exit(3))",
        "mine:TASK=q.jsonl",
        "raised SystemExit: 3",
    ),
    "a prompt that changes the row": (
        "TASK = Benchmark('x', prompt=lambda q, row: row.update(answer='2') or q)",
        "mine:TASK=q.jsonl",
        "raised AttributeError",
    ),
    "a tolerance of text": (
        "TASK = Benchmark('x', rules=lambda row, a: Rules(tolerance='0.1'))",
        "mine:TASK=q.jsonl",
        "rule tolerance cannot be '0.1'",
    ),
    "a tolerance of nothing": (
        "TASK = Benchmark('x', rules=lambda row, a: Rules(tolerance=float('nan')))",
        "mine:TASK=q.jsonl",
        "rule tolerance cannot be nan",
    ),
    "a unit of nothing": (
        "TASK = Benchmark('x', rules=lambda row, a: Rules(unit=None))",
        "mine:TASK=q.jsonl",
        "rule unit cannot be None",
    ),
}


def test_columns_can_lie_in_structs(here):
    own(here, "TASK = Benchmark('x', answer=('meta.gold',), rules=lambda row, a: Rules(unit=row['meta']['unit']))")
    (here / "q.jsonl").write_text('{"question": "Q", "meta": {"gold": "1", "unit": "km"}}\n')
    (question,) = tasks.load_task("mine:TASK=q.jsonl").questions
    assert question.gold == "1" and question.rules.unit == "km"


def test_a_reward_gets_golds_as_they_are_and_the_commands_reward_wins(here):
    own(here, "from pathlib import Path\nTASK = Benchmark('x', reward=Path('mine.py'))")
    (here / "q.jsonl").write_text(
        '{"question": "Q", "answer": "$7$"}\n{"question": "R", "answer": {"a": [1]}}\n{"question": "S"}\n'
    )
    task = tasks.load_task("mine:TASK=q.jsonl")
    assert ([each.gold for each in task.questions], task.reward) == (["$7$", '{"a": [1]}'], "mine.py")
    assert "it has no label" in task.skipped[0]
    assert tasks.load_task("mine:TASK=q.jsonl", reward="other.py").reward == "other.py"
    assert tasks.load_task("mine:TASK=q.jsonl", reward="math").reward == "math"
    golds = {
        reward: tasks.load_task("file:q.jsonl", reward=reward).questions[0].gold for reward in ("math", "other.py")
    }
    assert golds == {"math": "7", "other.py": "$7$"}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_wrong_with_a_benchmark_is_named(here, kind):
    code, spec, message = BAD[kind]
    own(here, code)
    (here / "q.jsonl").write_text('{"question": "Q", "answer": "1"}\n')
    with pytest.raises(UsageError, match=message):
        tasks.load_task(spec)


@pytest.mark.parametrize("name", ["mine:TASK", "aime"])
def test_scoring_names_its_own_flag(here, name):
    own(here, "TASK = 1")
    (here / "pairs.jsonl").write_text('{"gold": "1", "response": "1"}\n')
    with pytest.raises(SystemExit, match=f"error: --task {name}: "):
        score.main(["--input", "pairs.jsonl", "--output", "o.jsonl", "--task", name])


def test_no_file_of_the_working_directory_stands_in_for_an_installed_package(here):
    (here / "pyarrow.py").write_text("raise SystemExit('the wrong one')")
    own(here, "import importlib\nimportlib.invalidate_caches()\nimport pyarrow\nTASK = Benchmark('x')")
    with pytest.raises(UsageError, match="it has no data"):
        tasks.load_task("mine:TASK")
    assert sys.path[-1] == str(here)


def test_a_new_file_is_in_every_list(monkeypatch):
    assert list(BENCHMARKS) == list(FILES), "each file's name is its benchmark's"
    monkeypatch.setitem(BENCHMARKS, "new", Benchmark("new", copies=(HubSet("me/new", "test"),), about="NEW"))
    assert (
        tasks.find_benchmark("new", "--tasks").about == "NEW" and "  new             NEW" in tasks.describe_benchmarks()
    )
    with pytest.raises(UsageError, match=r"There are aime24, .*, new, and my_module:TASK"):
        tasks.load_task("unknown")


def test_no_benchmark_is_named_outside_its_file():
    """But in the list, and in examples of command lines, such as those of --help."""
    found = []
    for place in ("eval", "openrlhf_ebpo", "space"):
        for path in ROOT.joinpath(place).rglob("*.py"):
            if path.parent != ROOT / "eval" / "tasks" or path.stem not in BENCHMARKS:
                found += [(path.name, line.strip()) for line in path.read_text().splitlines() if named(line)]
    listed = [("__init__.py", f'"{name}",') for name in FILES]
    assert [each for each in found if each not in listed and "--task" not in each[1]] == []


def named(line: str) -> bool:
    return any(name in line.lower().replace("-", "") for name in BENCHMARKS)
