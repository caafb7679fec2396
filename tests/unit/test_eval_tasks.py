"""Tasks: every public schema through a small file of the same columns, with questions made up here."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import write_rows
from hub_repos import File
from patience import seconds

from openrlhf_ebpo.data.questions import DAPO_TEMPLATE, question_id
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import tasks
from openrlhf_ebpo.eval.tasks import Rules, benchmark

ROOT = Path(__file__).parents[2]


def text(number: int) -> str:
    return f"Made up here: what is {number} plus zero?"


# Each copy's columns, filled for question number i. The gold is always i.
SCHEMAS = {
    "HuggingFaceH4/aime_2024": (
        "aime24",
        30,
        lambda i: {
            "id": i,
            "problem": text(i),
            "solution": f"So \\boxed{{{i}}}.",
            "answer": f"{i:03d}",
            "url": "u",
            "year": "2024",
        },
    ),
    "Maxwell-Jia/AIME_2024": (
        "aime24",
        30,
        lambda i: {
            "ID": f"2024-I-{i}",
            "Problem": text(i),
            "Solution": "Long.",
            "Answer": i,
        },
    ),
    "math-ai/aime24": (
        "aime24",
        30,
        lambda i: {"id": i, "problem": text(i), "solution": f"\\boxed{{{i}}}", "url": "u"},
    ),
    "math-ai/aime25": ("aime25", 30, lambda i: {"problem": text(i), "answer": str(i), "id": str(i)}),
    "yentinglin/aime_2025": (
        "aime25",
        30,
        lambda i: {
            "id": i,
            "problem": text(i),
            "answer": f"{i}^\\circ" if i == 7 else str(i),
            "solution": "Long.",
            "year": "2025",
        },
    ),
    "math-ai/amc23": ("amc23", 40, lambda i: {"id": i, "question": text(i), "answer": float(i), "url": "u"}),
    "a list of text": ("amc23", 40, lambda i: {"question": text(i), "answer": [f"{i}.0"]}),
    "HuggingFaceH4/MATH-500": (
        "math500",
        500,
        lambda i: {
            "problem": text(i),
            "solution": "Long, \\boxed{nothing}.",
            "answer": str(i),
            "subject": "Algebra",
            "level": 1,
            "unique_id": f"test/algebra/{i}.json",
        },
    ),
    "Hothan/OlympiadBench": (
        "olympiadbench",
        674,
        lambda i: {
            "id": i,
            "question": text(i),
            "solution": ["Long."],
            "final_answer": [f"${i}$"],
            "context": None,
            "image_1": None,
            "modality": "Text-only",
            "difficulty": "Competition",
            "is_multiple_answer": False,
            "unit": None,
            "answer_type": "Numerical",
            "error": None,
            "question_type": "Open-ended",
            "subfield": "Algebra",
            "subject": "Math",
            "language": "English",
        },
    ),
    "Qwen2.5-Math's OlympiadBench": (
        "olympiadbench",
        675,
        lambda i: {
            "id": i,
            "subfield": "Algebra",
            "context": None,
            "question": text(i),
            "images": [],
            "final_answer": [str(i)],
            "is_multiple_answer": False,
            "unit": None,
            "answer_type": "Numerical",
            "error": None,
        },
    ),
}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("copy", SCHEMAS)
def test_every_public_schema_loads_from_a_local_copy(tmp_path, copy, suffix):
    name, count, row = SCHEMAS[copy]
    file = write_rows(tmp_path / f"{name}.{suffix}", [row(i) for i in range(count)])
    task = tasks.load_task(f"{name}={file}")
    assert (task.name, task.rows, len(task.questions)) == (name, count, count)
    assert not task.notes and not task.skipped
    assert task.source.startswith(f"{file}@")
    assert [question.gold for question in task.questions] == [str(i) for i in range(count)]
    assert [question.question for question in task.questions] == [text(i) for i in range(count)]
    assert task.questions[3].id == question_id(text(3))


def test_copies_of_one_benchmark_ask_the_same(tmp_path):
    copies = ["HuggingFaceH4/aime_2024", "Maxwell-Jia/AIME_2024", "math-ai/aime24"]
    loaded = [
        tasks.load_task(f"aime24={write_rows(tmp_path / f'{n}.jsonl', [SCHEMAS[c][2](i) for i in range(30)])}")
        for n, c in enumerate(copies)
    ]
    assert loaded[0].questions == loaded[1].questions == loaded[2].questions
    assert len({task.fingerprint() for task in loaded}) == 1 and len({task.source for task in loaded}) == 3
    other = write_rows(tmp_path / "other.jsonl", [SCHEMAS[copies[0]][2](i + 1) for i in range(30)])
    assert tasks.load_task(f"aime24={other}").fingerprint() != loaded[0].fingerprint()


PINNED = {
    "HuggingFaceH4/aime_2024": "ca6be3c79127",
    "math-ai/aime25": "ca6be3c79127",
    "math-ai/amc23": "b0cd7f754b8d",
    "HuggingFaceH4/MATH-500": "a079bf3cc8ba",
    "Hothan/OlympiadBench": "361f8dc7e899",
    "Qwen2.5-Math's OlympiadBench": "3729d0ea6029",
}


@pytest.mark.parametrize("copy", PINNED)
def test_fingerprints_stay_the_same_from_release_to_release(tmp_path, copy):
    """A result is continued and compared only under the fingerprint that it was made with."""
    name, count, row = SCHEMAS[copy]
    file = write_rows(tmp_path / "rows.jsonl", [row(i) for i in range(count)])
    assert tasks.load_task(f"{name}={file}").fingerprint() == PINNED[copy]


def test_the_fingerprint_of_rules_stays_the_same(tmp_path):
    rules = [
        {"question": "Q1", "final_answer": ["$2$", "$-3$"], "is_multiple_answer": True, "answer_type": "Numerical"},
        {"question": "Q2", "final_answer": ["$(1,2)$"], "answer_type": "Tuple", "context": "Let."},
        {
            "question": "Q3",
            "final_answer": ["3.5"],
            "answer_type": "Numerical",
            "unit": "$\\mathrm{cm}^2$",
            "error": ".1",
        },
    ]
    file = write_rows(tmp_path / "rows.jsonl", rules)
    assert tasks.load_task(f"olympiadbench={file}").fingerprint() == "568e3c5e2a0c"


@pytest.mark.parametrize(
    ("row", "gold_answer", "rules"),
    [
        (
            {"final_answer": ["$2$", "$-3$"], "is_multiple_answer": True, "answer_type": "Numerical"},
            "2, -3",
            Rules(answer_type="Numerical", is_multiple_answer=True, source_gold="$2$"),
        ),
        (
            {"final_answer": ["$(1,2),(2,1)$"], "is_multiple_answer": True, "answer_type": "Tuple"},
            "(1,2),(2,1)",
            Rules(answer_type="Tuple", is_multiple_answer=True, source_gold="$(1,2),(2,1)$"),
        ),
        (
            {"final_answer": ["$(1,2)$"], "is_multiple_answer": False, "answer_type": "Tuple"},
            "(1,2)",
            Rules(answer_type="Tuple", ordered=True, source_gold="$(1,2)$"),
        ),
        (
            {"final_answer": ["3.5"], "answer_type": "Numerical", "unit": "$\\mathrm{cm}^2$", "error": "1e-1"},
            "3.5",
            Rules(answer_type="Numerical", unit="\\mathrm{cm}^2", tolerance=0.1),
        ),
        (
            {"final_answer": ["$[0,\\infty)$"], "answer_type": "Interval"},
            "[0,\\infty)",
            Rules(answer_type="Interval", source_gold="$[0,\\infty)$"),
        ),
    ],
    ids=["several", "several tuples", "tuple", "unit and tolerance", "interval"],
)
def test_olympiadbench_rules(tmp_path, row, gold_answer, rules):
    task = tasks.load_task(f"olympiadbench={write_rows(tmp_path / 'o.jsonl', [{'question': text(1), **row}])}")
    assert (task.questions[0].gold, task.questions[0].rules) == (gold_answer, rules)


def test_olympiadbench_notes_what_a_copy_lacks_and_puts_context_first(tmp_path):
    rows = [{"question": "What is x?", "answer": "1", "context": "Let x be one."}]
    task = tasks.load_task(f"olympiadbench={write_rows(tmp_path / 'o.jsonl', rows)}")
    assert task.questions[0].question == "Let x be one.\n\nWhat is x?"
    lacks, size = task.notes
    assert "is_multiple_answer, unit, answer_type, error" in lacks and "674 or 675" in size


@pytest.mark.parametrize(
    ("answer", "expected"), [("025", "25"), ("000", "0"), ("27.0", "27"), ("336^\\circ", "336"), ("1,024", "1024")]
)
def test_integer_golds(answer, expected):
    assert benchmark.integer_text(answer) == expected


def test_a_row_that_cannot_be_used_is_named_and_left_out(tmp_path):
    rows = [{"problem": text(i), "answer": str(i)} for i in range(28)]
    rows += [{"problem": text(28), "answer": "B"}, {"problem": " ", "answer": "1"}]
    task = tasks.load_task(f"aime24={write_rows(tmp_path / 'a.jsonl', rows)}")
    assert len(task.questions) == 28 and task.rows == 30
    assert "row 29 of" in task.skipped[0] and "'B' is not an integer" in task.skipped[0]
    assert "row 30 of" in task.skipped[1] and "no question in column 'problem'" in task.skipped[1]


def test_an_unexpected_number_of_rows_is_noted_and_logged(tmp_path, caplog):
    file = write_rows(tmp_path / "a.jsonl", [{"question": text(i), "answer": float(i)} for i in range(39)])
    task = tasks.load_task(f"amc23={file}")
    assert task.rows == 39
    assert "39 rows, the public data set 40" in task.notes[0]
    assert task.notes[0] in caplog.text


def test_repeated_questions_keep_their_place_under_ids_of_their_own(tmp_path):
    rows = [{"question": text(1), "answer": "1"}, {"question": text(1) + " ", "answer": "1"}]
    task = tasks.load_task(f"file:{write_rows(tmp_path / 'a.jsonl', rows)}")
    assert [question.id for question in task.questions] == [question_id(text(1)), question_id(text(1)) + "-2"]
    assert task.notes == ("1 questions repeat an earlier one",)


FILES = {
    "question and answer": ({"question": text(1), "answer": "1"}, {}),
    "problem and gold": ({"problem": text(1), "gold": 1.0}, {}),
    "prepared": (
        {"id": "a", "prompt": DAPO_TEMPLATE.replace("{question}", text(1)), "question": text(1), "label": "1"},
        {},
    ),
    "DAPO": (
        {
            "prompt": [{"role": "user", "content": DAPO_TEMPLATE.replace("{question}", text(1))}],
            "reward_model": {"ground_truth": "1"},
        },
        {},
    ),
    "named": ({"q": text(1), "a": "1"}, {"question_column": "q", "answer_column": "a"}),
    "in a struct": ({"q": {"text": text(1)}, "answer": "1"}, {"question_column": "q.text"}),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_ones_own(tmp_path, kind):
    row, columns = FILES[kind]
    task = tasks.load_task(f"file:{write_rows(tmp_path / 'my set.jsonl', [row])}", **columns)
    assert task.name == "file-my-set"
    assert [(question.question, question.gold) for question in task.questions] == [(text(1), "1")]
    assert task.questions[0].rules == Rules()


BAD = {
    "unknown": (
        "aime2024",
        r"no such task. Did you mean aime24\? There are aime24, aime25, amc23, math500, olympiadb",
    ),
    "unknown place": ("aime24=somewhere", "neither a .* nor a known copy on the Hub .*Maxwell-Jia/AIME_2024"),
    "no place": ("aime24=", "--tasks aime24=: a file, or a data set"),
    "no file": ("file:nothing.jsonl", "--tasks nothing.jsonl: no such file"),
    "another kind": ("file:nothing.txt", "nothing.txt: cannot be read"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_specs(kind):
    spec, message = BAD[kind]
    with pytest.raises(UsageError, match=message):
        tasks.load_task(spec)


@pytest.mark.parametrize(
    ("rows", "spec", "columns", "found"),
    [
        ([], "file:{}", {}, r"q\.jsonl"),
        ([], "aime24={}", {}, r"q\.jsonl"),
        ([{"question": "q", "other": 1}], "file:{}", {}, r"q\.jsonl.* question, other: .* --answer"),
        ([{"question": "q", "other": 1}], "file:{}", {"question_column": "q"}, "--question_column q: "),
        ([{"question": "q", "other": 1}], "aime24={}", {}, "answer, final_answer, solution"),
        ([{"question": "q", "answer": ""}], "file:{}", {}, r"row 1 of .*q\.jsonl"),
    ],
)
def test_a_file_that_holds_no_questions_is_refused(tmp_path, rows, spec, columns, found):
    with pytest.raises(UsageError, match=found):
        tasks.load_task(spec.format(write_rows(tmp_path / "q.jsonl", rows)), **columns)


def test_split_specs():
    assert tasks.split_specs("aime24, my_module:TASK,,amc23=a.jsonl,file:q.jsonl ") == [
        *("aime24", "my_module:TASK", "amc23=a.jsonl", "file:q.jsonl")
    ]


def test_the_hub_its_cache_and_no_network(hub, hub_environment, tmp_path):
    """The real client against the test Hub; then the cache without it; then neither."""
    row = SCHEMAS["Maxwell-Jia/AIME_2024"][2]
    write_rows(tmp_path / "train.jsonl", [row(i) for i in range(30)])
    files = {"train.jsonl": File((tmp_path / "train.jsonl").read_bytes(), lfs=False)}
    commit = hub.create("Maxwell-Jia/AIME_2024", "dataset").commit("main", files, "data").id
    program = """
import os, sys
from openrlhf_ebpo.eval import tasks
from openrlhf_ebpo.errors import UsageError
from datasets import config
task = tasks.load_task("aime24=Maxwell-Jia/AIME_2024")
print(task.source, len(task.questions), task.questions[-1].gold, task.notes)
config.HF_HUB_OFFLINE = True
import huggingface_hub.constants
huggingface_hub.constants.HF_HUB_OFFLINE = True
assert tasks.load_task("aime24=Maxwell-Jia/AIME_2024") == task
try:
    tasks.load_task("math500")
except UsageError as error:
    print(error)
"""
    environment = {**hub_environment, "TQDM_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds(60)
    )
    assert done.returncode == 0, done.stderr
    loaded, refused = done.stdout.split("\n", 1)
    assert loaded == f"Maxwell-Jia/AIME_2024@{commit} 30 29 ()"
    assert "--tasks math500: HuggingFaceH4/MATH-500 cannot be downloaded from the Hub" in refused
    assert "--tasks math500=FILE" in refused
