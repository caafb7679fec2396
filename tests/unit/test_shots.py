"""Few-shot: which questions are shown, how, and what is refused."""

import json
from pathlib import Path

import pytest
from commands import write_rows

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import prompts, protocols, shots, tasks
from openrlhf_ebpo.eval.prompts import PromptForm
from openrlhf_ebpo.eval.tasks import OWN, REASONING_GYM, Question, Rules, Task

RAW, BOXED = PromptForm("Q: {question}"), PromptForm(prompts.TEMPLATES["boxed"])


def protocol(count: int, file: str = "x") -> protocols.Protocol:
    return protocols.override(protocols.get("default"), shots=count, shots_file=file)


def write(path: Path, numbers, **columns) -> str:
    rows = [{"question": f"What is {i}?", "answer": str(i), **columns} for i in numbers]
    return str(write_rows(path, rows))


@pytest.fixture
def task(tmp_path) -> Task:
    return tasks.load(f"file:{write(tmp_path / 'q.jsonl', [*range(6), 1])}")  # one question is there twice


def test_shots_of_a_file_are_none_of_the_questions(task, tmp_path):
    file = write(tmp_path / "train.jsonl", [3, 7, 8, 9])
    found = shots.with_shots(task, protocol(2), file, BOXED)
    assert found.shots == (("What is 7?", r"\boxed{7}"), ("What is 8?", r"\boxed{8}"))
    assert found.questions == task.questions and found.notes == task.notes
    assert found.fingerprint() != task.fingerprint() and shots.with_shots(task, protocol(0, ""), None, RAW) is task
    worked = write(tmp_path / "worked.jsonl", [7, 8], response="It is so.\nAnswer: it ")
    assert [answer for _, answer in shots.with_shots(task, protocol(2), worked, BOXED).shots] == [
        "It is so.\nAnswer: it"
    ] * 2
    assert shots.named(file) != shots.named(worked) and shots.named(file).startswith("train.jsonl@")


def test_a_question_that_the_file_spells_otherwise_is_not_shown(task, tmp_path):
    path = tmp_path / "train.jsonl"
    rows = [{"question": f" what  is {i}?", "answer": str(i)} for i in (3, 7)]
    write_rows(path, rows)
    assert [each for each, _ in shots.with_shots(task, protocol(1), str(path), RAW).shots] == ["what  is 7?"]


def test_a_question_that_a_benchmark_puts_words_around_is_not_shown(tmp_path):
    asked = Task("t", (Question("a", "How long is it? Say it in km.", "3"),), "s")
    path = tmp_path / "train.jsonl"
    rows = [{"question": text, "answer": "5"} for text in ("How long is it?", "How far is it?")]
    write_rows(path, rows)
    assert shots.with_shots(asked, protocol(1), str(path), RAW).shots == (("How far is it?", "Answer: 5"),)


def test_a_file_may_have_whole_responses_alone_and_one_that_has_no_answers_is_named_by_its_flag(tmp_path):
    def file(**columns) -> str:
        path = tmp_path / "worked.jsonl"
        path.write_text(json.dumps({"question": "Say it.", **columns}) + "\n")
        return str(path)

    own = Task("t", (Question("a", "Say more.", "", Rules(OWN, scorer="m:T@1")),), "s")
    shown = shots.with_shots(own, protocol(1), file(response="It is said."), RAW).shots
    assert shown == (("Say it.", "It is said."),)
    with pytest.raises(UsageError, match=r"^--shots_file .*no column for the gold answer.* or response\).*topic$"):
        shots.with_shots(own, protocol(1), file(topic="words"), RAW)


def test_too_few_to_show(task, tmp_path):
    file = write(tmp_path / "train.jsonl", [3, 7, 8, 9])
    with pytest.raises(UsageError, match=r"--shots 4: .*train.jsonl has 3 questions that task file-q does not ask"):
        shots.with_shots(task, protocol(4), file, RAW)


def test_answers_are_shown_as_their_scorer_reads_them():
    assert shots.shown_answer(Question("a", "Q", "B", Rules("choice", entry="AB")), BOXED) == r"\boxed{B}"
    assert shots.shown_answer(Question("a", "Q", "5", Rules(REASONING_GYM, entry="{}")), BOXED) == "5"
    for question in (Question("a", "Q", ""), Question("a", "Q", "x", Rules(OWN, scorer="m:T@1"))):
        with pytest.raises(UsageError, match="'Q' has no gold answer to show; a column 'response' of --shots_file"):
            shots.shown_answer(question, RAW)


def test_a_file_that_is_not_there_names_its_flag(tmp_path):
    with pytest.raises(UsageError, match=r"--shots_file .*no.jsonl: no such file"):
        shots.named(str(tmp_path / "no.jsonl"))
    for alone in ((0, "x"), (2, "")):
        with pytest.raises(UsageError, match="--shots N and --shots_file FILE go together"):
            protocol(*alone)
    with pytest.raises(UsageError, match="--shots -1"):
        protocol(-1)


def test_shots_are_text_before_the_question_or_turns_of_a_chat():
    shown = (("{question} 1", "Answer: 1"), ("two", "Answer: 2"))
    task = Task("t", (Question("a", "three", "3"),), "s", shots=shown)
    text = prompts.message(prompts.for_task(RAW, task), "three")
    assert text == "Q: {question} 1\nAnswer: 1\n\nQ: two\nAnswer: 2\n\nQ: three\n"
    chat = prompts.message(prompts.for_task(PromptForm("Q: {question}", True, "Be"), task), "three")
    assert [turn["role"] for turn in chat] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [turn["content"] for turn in chat] == [
        "Be",
        "Q: {question} 1",
        "Answer: 1",
        "Q: two",
        "Answer: 2",
        "Q: three",
    ]
    assert prompts.message(prompts.for_task(RAW, Task("t", (), "s")), "three") == "Q: three"


def test_shots_as_text_need_a_stop_text():
    prompts.check_shots(RAW, 2, ("\n\n",))
    prompts.check_shots(PromptForm("{question}", True), 2, ())
    prompts.check_shots(RAW, 0, ())
    with pytest.raises(UsageError, match=r"--shots 2: without a chat template .* add --stop"):
        prompts.check_shots(RAW, 2, ())
