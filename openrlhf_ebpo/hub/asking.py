"""The form in which a training asked its model, as code for the card."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from openrlhf_ebpo.hub.content import local_file
from openrlhf_ebpo.hub.markdown import Markdown, fenced
from openrlhf_ebpo.hub.public import hub_id, step_tag
from openrlhf_ebpo.redact import redacted_text, without_own_homes
from openrlhf_ebpo.run.run_log import get_nested, step_files

BARE = "{question}"  # the instruction of prompts that are questions alone
QUESTION = "What is 12 * 13?"  # where no prompt of the training is known
MAX_PROMPT_CHARS = 2000


def use(run_dir: Path, run: dict, repo: str, step: int) -> dict:
    """Values for the part "Use it" of a card: code that asks as the training did, or that it cannot be given."""
    adapter = bool(get_nested(run, "args", "ds", "lora", "rank"))
    first, data = first_prompt(run_dir), get_nested(run, "args", "data") or {}
    chat, template = bool(data.get("apply_chat_template")), str(data.get("input_template") or "{}")
    instruction = str(get_nested(run, "instruction", "template") or BARE)
    question = bare_question(first, template.replace("{}", instruction)) if first and not chat else None
    instructed = f"{json.dumps(instruction)}.replace({json.dumps(BARE)}, question)"
    snippet = {  # JSON, which has no line that ends a block of code
        "repo": json.dumps(repo),
        "revision": json.dumps(step_tag(step)),
        "question": json.dumps(question or QUESTION),
        "message": "question" if instruction == BARE else instructed,
        "prompt": prompt_code(data, template, get_nested(run, "instruction", "system")),
        "tokens": json.dumps(get_nested(run, "args", "rollout", "max_new_tokens") or 1024),
    }
    return {
        "adapter": adapter,
        "usable": bool(not adapter or hub_id(run.get("model"), run_dir)),
        "first_prompt": fenced("text", first) if first else None,
        "chat": chat,
        **{name: Markdown(redacted_text(value)) for name, value in snippet.items()},
    }


def prompt_code(data: dict, template: str, system: str | None) -> str:
    """Code that puts the message into `template`, or after any system message into the tokenizer's chat template."""
    if not data.get("apply_chat_template"):
        return f"{json.dumps(template)}.format(message)"
    pairs = [str(each).partition("=") for each in data.get("template_kwargs") or ()]
    more = "".join(f", {name}={json.loads(value)!r}" for name, _, value in pairs if name.isidentifier())
    before = f'{{"role": "system", "content": {json.dumps(system)}}}, ' if isinstance(system, str) else ""
    messages = f'[{before}{{"role": "user", "content": message}}]'
    return f"generate.tokenizer.apply_chat_template({messages}, tokenize=False, add_generation_prompt=True{more})"


def first_prompt(run_dir: Path) -> str | None:
    """A prompt of the training as the model read it, from its first rollouts that are there; None without any, or for
    a long one."""
    path = next(iter(step_files(run_dir).values()), None)
    if path is None:
        return None
    with local_file(path, run_dir).open() as file:
        texts = pq.read_table(file, columns=["prompt"])["prompt"].to_pylist()
    text = without_own_homes(redacted_text(texts[0])) if texts else ""
    return text if text and len(text) <= MAX_PROMPT_CHARS else None


def bare_question(prompt: str, template: str) -> str | None:
    """Extract the text in place of {question} in `template`; None if the prompt does not fit it."""
    before, _, after = template.partition(BARE)
    if not (prompt.startswith(before) and prompt.endswith(after)):
        return None
    return prompt.removeprefix(before).removesuffix(after)
