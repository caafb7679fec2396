"""The layout of a model's text on a page: its parts, its ends, notes about it; and the route for the rest."""

import gzip
import shutil
from pathlib import Path

import pytest
import space_runs
from tags import Tags

from openrlhf_ebpo.space import reading, results
from openrlhf_ebpo.space.errors import RunError
from openrlhf_ebpo.space.reading import WHOLE, Options, answer, hits, line
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.server import MAX_CHUNK_CHARS, chunk
from openrlhf_ebpo.space.turns import MARKED, MAX_PARTS, Part, last_user_turn, parts
from openrlhf_ebpo.space.workspace import Workspace

EDGE = 3 * WHOLE // 8
CHATML = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 1+1?<|im_end|>\n<|im_start|>assistant\n"
LLAMA = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nWhat is "
    "1+1?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)
GEMMA = "<bos><start_of_turn>user\nWhat is 1+1?<end_of_turn>\n<start_of_turn>model\n"


def shown(text):
    return [(part.role, text[part.start : part.stop]) for part in parts(text)]


@pytest.mark.parametrize(
    "prompt", [CHATML, LLAMA, GEMMA, "<s>[INST] What is 1+1? [/INST]", "<｜User｜>What is 1+1?<｜Assistant｜>"]
)
def test_marks_of_chat_templates_become_roles(prompt):
    found = [(role, said) for role, said in shown(prompt) if role != "system"]
    assert found == [("user", "What is 1+1?"), ("assistant", "")]
    assert last_user_turn(prompt) == "What is 1+1?"


def test_text_without_marks_is_one_part():
    assert parts("2 < 3 and <b> and <|x|>") == [Part(0, 23)]
    assert parts("") == [Part(0, 0)] and last_user_turn("") == "" and last_user_turn("plain") == "plain"


def test_an_answer_says_where_it_ended():
    text = "It is 2.<|im_end|>"
    assert parts(text) == [Part(0, 8, ended=True)]
    assert "end of turn" in answer(text) and "im_end" not in answer(text)
    assert "im_end" in answer(text, Options(raw=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a b</think>\n\nc", [("a b", True, False), ("\n\nc", False, False)]),
        ("a b</think>c", [("a b", True, False), ("c", False, False)]),  # <think> was in the prompt
        ("<think>a b", [("a b", True, True)]),
        (
            "x <think>a</think> y <think>b",
            [("x ", False, False), ("a", True, False), (" y ", False, False), ("b", True, True)],
        ),
    ],
)
def test_thoughts(text, expected):
    assert [(text[p.start : p.stop], p.thought, p.open) for p in parts(text)] == expected


def test_a_thought_is_folded_with_its_length():
    text = f"<think>{'a ' * 500}</think>Done."
    found = answer(text)
    assert "1,000 characters" in found and "<details" in found and "never closed" not in found
    assert "never closed" in answer("<think>a b c")


def test_many_marks_end_in_one_part():
    found = parts("a<|im_end|>" * 10_000)
    assert len(found) == MAX_PARTS + 1 and found[-1].stop == 110_000


def test_head_and_tail_of_a_long_text_are_there_and_the_rest_is_named():
    text = "A" * EDGE + "B" * 50_000 + "C" * EDGE
    found = answer(text, Options(source={"run": "a/b&c", "step": 1, "group": 2, "sample": 3}))
    said = Tags(found)
    assert "50,000 more characters" in said.text and said.text.count("A") == EDGE and said.text.count("C") == EDGE
    assert 'data-next="6000" data-stop="56000"' in found
    assert "run=a%2Fb%26c&#38;step=1&#38;group=2&#38;sample=3" in found
    assert "more characters" not in answer("A" * WHOLE)


def test_what_was_cut_by_its_limit_says_so():
    assert "length limit" in answer("and so", Options(truncated=True)) and "length limit" not in answer("and so")


def test_marks_are_kept_per_place_in_the_text():
    found = Tags(answer("x", Options(find='"><b>', extracted="1", gold=None)))
    assert {"data-find", "data-hits", "data-extracted"} <= found.attributes and "data-gold" not in found.attributes
    assert "b" not in found.tags
    assert hits("İİ Abab", "AB") == 2 and hits("İab", "i") == 0 and hits("İab", "İA") == 1
    assert hits("Abab", "AB") == 2 and hits(None, "a") == 0 and hits("a", "") == 0


@pytest.mark.parametrize("text", space_runs.EVIL, ids=range(len(space_runs.EVIL)))
def test_hostile_text_stays_text(text):
    for found in (answer(text), answer(text, Options(raw=True)), line(text)):
        assert Tags(found).tags <= {"div", "section", "pre", "span", "wbr", "p", "details", "summary", "small"}


def test_a_line_is_short():
    assert Tags(line("a\n\n b" + "c" * 500, 20)).text == "a b" + "c" * 17 + "…"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    space_runs.learning_run(folder / "ebpo", steps=2, seed=1, name="ebpo")
    return Workspace(Runs([str(folder)]))


def test_the_rest_of_a_text_comes_in_ranges(workspace):
    asked_for = {"run": "ebpo", "step": "2", "group": "3", "sample": "1"}
    whole = chunk(workspace, {**asked_for, "from": "0", "to": "5000"})
    halves = [chunk(workspace, {**asked_for, "from": a, "to": b}) for a, b in (("0", "20"), ("20", "5000"))]
    assert whole == "".join(halves) and "We look for a value" in whole
    prompt = chunk(workspace, {**asked_for, "field": "prompt", "from": "0", "to": "9"})
    assert len(prompt) == 9 and prompt not in whole


def test_the_rest_of_a_sample_of_an_evaluation(workspace):
    place = next((workspace.open("ebpo").run.path / "eval").glob("*/*/step-*"))
    query = {"run": "ebpo", "place": f"eval/{place.parent.parent.name}/{place.parent.name}/{place.name}", "row": "3"}
    assert "boxed" in chunk(workspace, {**query, "from": "0", "to": "5000"})


def test_the_rest_of_a_sample_of_results_without_a_run(workspace, tmp_path):
    shutil.copytree(workspace.open("ebpo").run.path / "eval", tmp_path / "results")
    bare = Workspace(Runs([str(tmp_path / "results")]))
    (first, *_), _ = results.find(bare.runs.get("results"))
    assert not first.place.startswith("eval/")
    query = {"run": "results", "place": first.place, "row": "3", "from": "0", "to": "5000"}
    assert "boxed" in chunk(bare, query)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "../ebpo"},
        {"run": "other"},
        {"step": "9"},
        {"group": "900"},
        {"sample": "64"},
        {"sample": "-1"},
        {"field": "label"},
        {"to": str(MAX_CHUNK_CHARS + 1)},
        {"from": "7", "to": "5"},
        {"from": "x"},
        {"place": "../../run.json", "row": "1"},
        {"place": "eval/a/b/step-000001", "row": "1"},
        {"place": "eval/../../step-1", "row": "1"},
        {"place": "../../step-1", "row": "1"},
    ],
)
def test_only_texts_of_open_runs_are_given(workspace, changes):
    query = {"run": "ebpo", "step": "2", "group": "3", "sample": "1", "from": "0", "to": "9"}
    with pytest.raises(RunError):
        chunk(workspace, query | changes)


def test_a_text_of_millions_of_characters_has_its_ends_on_the_page():
    text = "<think>" + "word " * MARKED + "</think>\\boxed{7}"
    found = parts(text)
    assert [(part.start, part.stop, part.open) for part in found] == [(7, len(text), False)]
    shown = reading.answer(text)
    assert "boxed" in shown and "more characters" in shown and len(shown) < 100_000


def test_files_of_other_projects_come_with_their_licences_and_are_small():
    vendor = Path(reading.__file__).parent / "static" / "vendor"
    listed = (vendor / "README.md").read_text()
    for path in (path for folder in vendor.iterdir() if folder.is_dir() for path in folder.iterdir()):
        assert (path.parent / "LICENSE.txt").read_text()
        assert path.name in listed or path.name == "LICENSE.txt"
        assert path.stat().st_size < 1_000_000 and b"sourceMappingURL" not in unpacked(path)


def unpacked(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
