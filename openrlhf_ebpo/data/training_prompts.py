"""Read the instruction that the prompts of a training have in common, from its data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from openrlhf_ebpo.data.clean import prompt_text
from openrlhf_ebpo.data.data_files import is_local
from openrlhf_ebpo.data.questions import QUESTION, bare_question
from openrlhf_ebpo.data.source import lookup
from openrlhf_ebpo.data.training_tables import read_rows
from openrlhf_ebpo.errors import UsageError

SAMPLED = 200  # rows that the instruction is read from
AGREE = 0.9  # share of them that have to have the same one


def recorded_instruction(data: Mapping) -> dict | None:
    """Return template and system message of a run's training prompts for run.json, whose readers may lack the data set;
    None if that is not on this machine, or the prompts have no instruction in common. data: the run's flags --data.…"""
    name = str(data["prompt_dataset"])
    try:
        rows = next(read_rows(name, flag="--data.prompt_dataset", batch_size=SAMPLED), []) if is_local(name) else []
        template, system = instruction_of(rows, data.get("input_key") or "prompt", name)
    except UsageError:
        return None
    return {"template": template, "system": system}


def instruction_of(rows: Iterable[dict], column: str, place: str) -> tuple[str, str | None]:
    """Return (template, system message) that rows of training prompts share. Where they have no column `question`, only
    an instruction like DAPO's can be separated from the question; prompts without it are taken for bare questions.

    Raises:
        UsageError: they do not share one.
    """
    found: Counter = Counter()
    for row in rows:
        prompt = lookup(row, column)
        text = prompt_text(prompt) or ""
        question = row.get("question")
        question = question if isinstance(question, str) and question else bare_question(text)
        before, is_there, after = text.partition(question) if question else ("", "", "")
        messages = prompt if isinstance(prompt, list) else []
        system = next((message["content"] for message in messages if message.get("role") == "system"), None)
        found[(before + QUESTION + after, system) if is_there else None] += 1
    instruction, count = found.most_common(1)[0] if found else (None, 0)
    if instruction is None or count < AGREE * found.total():
        raise UsageError(f"{place}: its prompts (column {column!r}) do not have one instruction in common")
    return instruction
