"""The code that a model card shows: asking the model with transformers and with vLLM, in the prompt of its training."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from openrlhf_ebpo.data.questions import QUESTION
from openrlhf_ebpo.data.training_prompts import read_instruction
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.public import public_text

EXAMPLE = "What is 12 * 13?"


@dataclass(frozen=True)
class Usage:
    """Settings that the snippets depend on. template: text with {question} in it; system: the system message of a chat
    template; known: True if the instruction of the training prompts is known; bos: --data.add_bos."""

    repo: str
    revision: str
    template: str
    chat_template: bool
    system: str | None
    temperature: float
    top_p: float
    max_new_tokens: int
    known: bool = True
    bos: bool = False


def of_run(args: dict, repo: str, revision: str) -> Usage:
    data = args.get("data", {})
    template, system, known = prompt_of(data)
    rollout, bos = args.get("rollout", {}), bool(data.get("add_bos"))
    return Usage(
        repo,
        revision,
        public_text(template),
        bool(data.get("apply_chat_template")),
        system and public_text(system),
        number(rollout.get("temperature"), 1.0),
        number(rollout.get("top_p"), 1.0),
        int(number(rollout.get("max_new_tokens"), 1024)),
        known,
        bos,
    )


def number(value: object, default: float) -> float:
    """Return `value` if it is a finite number, else `default`: run.json is untrusted, and this becomes code."""
    return value if type(value) in (int, float) and math.isfinite(value) else default


def prompt_of(data: dict) -> tuple[str, str | None, bool]:
    """Return (template, system message, known) of the training prompts. known: True if the training data, which has the
    instruction, is here."""
    try:
        (template, system), known = read_instruction(data), True
    except (UsageError, KeyError):
        template, system, known = QUESTION, None, False
    if data.get("input_template") and not data.get("apply_chat_template"):
        template = data["input_template"].replace("{}", template)
    return template, system, known


def transformers_snippet(usage: Usage) -> str:
    return f"""\
from transformers import AutoModelForCausalLM, AutoTokenizer

repo, revision = {literal(usage.repo)}, {literal(usage.revision)}
tokenizer = AutoTokenizer.from_pretrained(repo, revision=revision)
model = AutoModelForCausalLM.from_pretrained(repo, revision=revision, dtype="auto", device_map="auto")

{_prompt(usage)}
inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).to(model.device)
sampling = dict(do_sample=True, temperature={usage.temperature}, top_p={usage.top_p}, top_k=0)
output = model.generate(**inputs, **sampling, max_new_tokens={usage.max_new_tokens})
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""


def vllm_snippet(usage: Usage) -> str:
    """Return the snippet for vLLM, below a main guard: vLLM may start processes that import the script again."""
    repo, revision = literal(usage.repo), literal(usage.revision)
    sampling = f"temperature={usage.temperature}, top_p={usage.top_p}, max_tokens={usage.max_new_tokens}"
    lines = [
        f"llm = LLM({repo}, revision={revision}, tokenizer_revision={revision})",
        "tokenizer = llm.get_tokenizer()",
        *_prompt(usage).splitlines(),
        'tokens = tokenizer(prompt, add_special_tokens=False)["input_ids"]',
        f"sampling = SamplingParams({sampling})",
        'print(llm.generate([{"prompt_token_ids": tokens}], sampling)[0].outputs[0].text)',
    ]
    body = "\n".join(f"    {line}" for line in lines)
    return f'from vllm import LLM, SamplingParams\n\nif __name__ == "__main__":\n{body}'


def literal(text: str) -> str:
    """A Python string literal in double quotes."""
    plain = json.dumps(text, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", plain)  # some end a line


def _prompt(usage: Usage) -> str:
    """Lines that put a question into `prompt`; str.format is not used, mathematics is full of braces."""
    lines = [f"question = {literal(EXAMPLE)}", "prompt = question"]
    if usage.template != QUESTION:
        lines[1:] = [
            f"template = {literal(usage.template)}",
            f"prompt = template.replace({literal(QUESTION)}, question)",
        ]
    if usage.chat_template:
        system = f'{{"role": "system", "content": {literal(usage.system)}}}, ' if usage.system else ""
        lines.append(f'messages = [{system}{{"role": "user", "content": prompt}}]')
        lines.append("prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)")
    if usage.bos:
        lines.append("prompt = tokenizer.bos_token + prompt.removeprefix(tokenizer.bos_token)")
    return "\n".join(lines)
