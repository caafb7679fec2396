"""Questions to a model behind a server: the request for one, and the reading of its answer.

Chat completions take the question's text and put it into the chat template, which is the server's; completions take the
prompt as it is. vLLM's server applies the defaults of the model's generation_config.json to all that a request does not
say (temperature, top-k, repetition penalty …), so it is told all of them. Each response is a request with its own seed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from openrlhf_ebpo.files import whole_characters
from openrlhf_ebpo.generation.engines import GenerationError
from openrlhf_ebpo.rewards.servers import excerpt, shown

from . import prompts
from .endpoint import Endpoint, NoAnswer
from .prompts import PromptForm
from .protocols import THINK, Protocol, begun_thinking

ENDS_COMMAND = (401, 402, 404, 405)  # statuses that every question would get
MAX_FAILED_IN_A_ROW = 16  # questions
MAX_TOKENS = (1 << 31) - 1  # that a result has room for
CHARS_PER_TOKEN = 4  # where the server counts none
BROKEN_OFF = ("abort", "error")  # reasons of a response that its model has not ended
FACTS = "facts"  # of a record: numbers of responses, by the names below
NOTES = {
    "uncounted": "the server did not count the tokens of {count} responses; their lengths are estimated from their characters",
    "withheld": "the server withheld {count} responses (content_filter); they count as they came",
    "cut_early": "the server cut {count} responses before --max_new_tokens {limit}: it has its own limit",
}
UNKNOWN_TEMPLATE = (
    f"warning: --strip_think: whether the server's chat template begins with {THINK} is not known. If it does, start "
    "the server with its reasoning parser; else a response that never ends its thoughts may get its answer from them"
)

Question = tuple[str, dict, int]  # key, `asked`, number of responses


def respond(
    endpoint: Endpoint,
    questions: Sequence[Question],
    form: PromptForm,
    protocol: Protocol,
    keep: Callable[[str, dict], None],
    say: Callable[[str], None] = print,
) -> dict[str, str]:
    """Give every question's record to `keep` as it comes; return the others' keys, and why they have no responses.

    Raises:
        GenerationError: the server answers nobody, or will not answer this command.
    """
    if protocol.strip_think and form.chat_template:
        say(UNKNOWN_TEMPLATE)
    return asyncio.run(_respond(endpoint, questions, form, protocol, keep, say))


async def _respond(endpoint, questions: Iterable[Question], form, protocol, keep, say) -> dict[str, str]:
    failed, kept, in_a_row = {}, [], 0
    async with endpoint.client() as client:
        asker = Asker(endpoint, client, form, protocol)
        tasks = [asyncio.create_task(asker.record(*question)) for question in questions]
        try:
            for each in asyncio.as_completed(tasks):
                key, found = await each
                if isinstance(found, dict):
                    keep(key, found)
                    kept.append({FACTS: found.get(FACTS, {})})
                    in_a_row = 0
                    continue
                failed[key] = str(found)
                in_a_row += 1
                if in_a_row >= MAX_FAILED_IN_A_ROW:
                    raise GenerationError(f"{in_a_row} questions in a row got no responses; the last: {found}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    for note in notes(kept, protocol):
        say(f"warning: {note}")
    return failed


class Asker:
    """Asks an endpoint through a client of the `openai` package, as many requests at once as its `concurrency` says."""

    def __init__(self, endpoint: Endpoint, client, form: PromptForm, protocol: Protocol):
        self.endpoint, self.client, self.form, self.protocol = endpoint, client, form, protocol
        self._room = asyncio.Semaphore(endpoint.concurrency)

    async def record(self, key: str, prompt: dict, n: int) -> tuple[str, dict | NoAnswer]:
        """Return the key, and what progress keeps of the question or why there is nothing."""
        seeds = [seed_of(self.protocol.seed, key, i) for i in range(n)]
        try:
            responses = await asyncio.gather(*(self.response(prompt, seed) for seed in seeds))
        except NoAnswer as error:
            return key, error
        columns = {name: [response[name] for response in responses] for name in ("text", "length", "reason")}
        facts = Counter(fact for response in responses for fact in response["facts"])
        counted = responses[0]["prompt_tokens"]
        return key, {
            **({} if counted is None else {"prompt_tokens": counted}),
            "responses": columns["text"],
            "lengths": columns["length"],
            "finish_reasons": columns["reason"],
            **({FACTS: dict(facts)} if facts else {}),
            "seed": self.protocol.seed,
        }

    async def response(self, prompt: dict, seed: int) -> dict:
        """Return one response: text, length in tokens, reason, prompt_tokens (None: not counted), facts (names in NOTES).

        Raises:
            NoAnswer: the server does not answer this. GenerationError: it will not answer this command.
        """
        path = "/chat/completions" if self.form.chat_template else "/completions"
        try:
            async with self._room:
                post = self.client.post(path, body=self.request(prompt, seed), cast_to=object)
                answer = await self.endpoint.ask(post)
        except NoAnswer as error:
            if error.status in ENDS_COMMAND:
                raise GenerationError(str(error)) from None
            raise
        return self.read(answer, prompt)

    def read(self, answer: object, prompt: dict) -> dict:
        """Return `response` of what a server answers to a request for one.

        Raises:
            NoAnswer: it has none.
        """
        try:
            (choice,) = answer["choices"]
            text, why = text_of(choice), choice.get("finish_reason")
            if why in BROKEN_OFF:
                raise ValueError(why)
        except (TypeError, KeyError, ValueError, AttributeError):
            words = excerpt(self.endpoint.without_key(str(answer)))
            raise NoAnswer(f"{shown(self.endpoint.url)} answered without a response: {words}") from None
        counted = used(answer, "completion_tokens")
        facts = {
            "uncounted": counted is None,
            "withheld": why == "content_filter",
            "cut_early": why == "length" and counted is not None and counted < self.protocol.max_new_tokens,
        }
        begun = self.protocol.strip_think and "prompt" in prompt and not text.startswith(THINK)
        return {
            "text": (begun_thinking(prompt["prompt"]) if begun else "") + self.endpoint.without_key(text),
            "length": max(1, len(text) // CHARS_PER_TOKEN) if counted is None else counted,
            "reason": "length" if why == "length" else "stop",
            "prompt_tokens": used(answer, "prompt_tokens"),
            "facts": [name for name, is_so in facts.items() if is_so],
        }

    def request(self, prompt: dict, seed: int) -> dict:
        """Return the body of a request for one response."""
        protocol, is_chat = self.protocol, self.form.chat_template
        sampling = {"seed": seed, "temperature": protocol.temperature, "top_p": protocol.top_p}
        body = {"model": self.endpoint.name, **prompt, "max_tokens": protocol.max_new_tokens, **sampling}
        body |= {"stop": list(protocol.stop)} if protocol.stop else {}
        if not self.endpoint.is_vllm:
            return body
        engines_do = {"repetition_penalty": 1.0, "min_tokens": 1, "add_special_tokens": self.form.bos}
        body |= {"top_k": protocol.top_k, "min_p": protocol.min_p, **engines_do}
        return body | ({"chat_template_kwargs": self.form.given()} if is_chat else {})


def asked(form: PromptForm, question: str) -> dict:
    """Return the question in the fields of a request."""
    message = prompts.message(form, question)
    if form.chat_template:
        return {"messages": message if isinstance(message, list) else [{"role": "user", "content": message}]}
    return {"prompt": form.input_template.format(message) if form.input_template else message}


def text_of(choice: Mapping) -> str:
    """Return the text of a response, with the thoughts that a server gives apart before it.

    Raises:
        TypeError, KeyError: it has none.
    """
    if "message" not in choice:
        return whole_characters(choice["text"])
    message = choice["message"]
    content, thought = message.get("content") or "", message.get("reasoning") or message.get("reasoning_content")
    if thought:
        content = f"<think>\n{thought}" + (f"</think>\n\n{content}" if content else "")
    return whole_characters(content)


def used(answer: Mapping, name: str) -> int | None:
    """Return a count of tokens that the server has used, None where it has not counted them."""
    usage = answer.get("usage")
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if type(found) is int and 0 <= found <= MAX_TOKENS else None


def seed_of(seed: int, key: str, sample: int) -> int:
    """Return a request's seed, made of the protocol's, the question and the response's number, whenever it is asked."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}/{sample}".encode()).digest()[:4], "big") >> 1


def notes(records: Iterable[Mapping], protocol: Protocol) -> list[str]:
    """Return what is out of the ordinary in the responses of these records, in words."""
    total: Counter[str] = Counter()
    for record in records:
        total.update(record.get(FACTS, {}))
    return [
        words.format(count=total[name], limit=protocol.max_new_tokens) for name, words in NOTES.items() if total[name]
    ]
