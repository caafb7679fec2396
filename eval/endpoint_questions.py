"""Questions to a model behind a server: what is sent for one, what is read from the answer.

Chat completions take the question's text and put it into the chat template, which is the server's; completions take the
prompt as it is. vLLM's server applies the defaults of the model's generation_config.json to all that a request does not
say (temperature, top-k, repetition penalty …), so it is told all of them. Each response is a request with a seed of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass

from openrlhf_ebpo.files import whole_characters
from openrlhf_ebpo.generation.engines import GenerationError
from openrlhf_ebpo.rewards.servers import excerpt, shown

from . import prompts
from .endpoint import OMITTABLE, Endpoint
from .prompts import PromptForm
from .protocols import THINK, Protocol, begun_thinking

ENDS_COMMAND = (401, 402, 404, 405)  # statuses that every question would get
RETRIED = (408, 409, 429)  # by the client, as are 5xx
MAX_REFUSED_IN_A_ROW = 16  # questions, and none answered: it is not the questions
MAX_TOKENS = (1 << 31) - 1  # that a result has room for
CHARS_PER_TOKEN = 4  # where the server counts none
BROKEN_OFF = ("abort", "error")  # reasons of a response that its model has not ended
FACTS = "facts"  # of a record: numbers of responses, by the names below
NOTES = {
    "uncounted": "the server did not count the tokens of {count} responses; their lengths are estimated from their characters",
    "withheld": "the server withheld {count} responses (content_filter); they count as they came",
    "cut_early": "the server cut {count} responses before --max_new_tokens {limit}: it has a limit of its own",
}
UNKNOWN_TEMPLATE = (
    f"warning: --strip_think: whether the server's chat template begins with {THINK} is not known. If it does, start "
    "the server with its reasoning parser; else a response that never ends its thoughts may get its answer from them"
)

Question = tuple[str, dict, int]  # key, `asked`, number of responses


class Refused(Exception):
    """An answer to a request that would be the same another time."""


class GaveUp(Refused):
    """Trouble of this request that has not passed."""


@dataclass(frozen=True)
class Response:
    """One response. length: in tokens. prompt_tokens: None where the server has not counted them. facts: names in NOTES."""

    text: str
    length: int
    reason: str
    prompt_tokens: int | None = None
    facts: tuple[str, ...] = ()


def respond(
    endpoint: Endpoint,
    questions: Sequence[Question],
    form: PromptForm,
    protocol: Protocol,
    keep: Callable[[str, dict], None],
    say: Callable[[str], None] = print,
    answered: bool = False,
    leave_out: bool = False,
) -> dict[str, Refused]:
    """Give every question's record to `keep` as it comes; return the others' keys, and why they have no responses.

    answered: whether the server has answered questions of this evaluation before. leave_out: refusals are no reason to end,
        once there are answers.

    Raises:
        GenerationError: the server answers nobody, or will not answer this command.
    """
    return asyncio.run(_respond(endpoint, questions, form, protocol, keep, say, answered, leave_out))


async def _respond(
    endpoint, questions: Iterable[Question], form, protocol, keep, say, answered: bool, leave_out: bool
) -> dict[str, Refused]:
    failed: dict[str, Refused] = {}
    kept: list[dict] = []
    in_a_row = 0
    if protocol.strip_think and form.chat_template:
        say(UNKNOWN_TEMPLATE)
    async with endpoint.client(endpoint.limits) as client:
        asker = Asker(endpoint, client, form, protocol)
        tasks = [asyncio.create_task(asker.record(*question)) for question in questions]
        try:
            for each in asyncio.as_completed(tasks):
                key, record, error = await each
                if error is None:
                    keep(key, record)
                    kept.append({FACTS: record.get(FACTS, {})})
                    in_a_row, answered = 0, True
                    continue
                failed[key] = error
                in_a_row += isinstance(error, GaveUp) or not (leave_out and answered)
                if in_a_row >= MAX_REFUSED_IN_A_ROW:
                    raise GenerationError(_in_vain(in_a_row, error, answered))
        finally:
            await _cancel(tasks)
    for note in notes(kept, protocol):
        say(f"warning: {note}")
    return failed


def _in_vain(count: int, error: Refused, answered: bool) -> str:
    but = "; it has answered others: --leave_out_refused, if it is the questions"
    return (
        f"{count} questions in a row got no responses; the last: {error}"
        f"{but if answered and not isinstance(error, GaveUp) else ''}"
    )


async def _cancel(tasks: Sequence[asyncio.Task]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _all(coroutines: Iterable[Coroutine]) -> list:
    """Return the results of all; the first error ends the others."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


class Asker:
    """Asks an endpoint through a client of the `openai` package, as many requests at once as its limits say."""

    def __init__(self, endpoint: Endpoint, client, form: PromptForm, protocol: Protocol):
        self.endpoint, self.client, self.form, self.protocol = endpoint, client, form, protocol
        self._room = asyncio.Semaphore(endpoint.limits.concurrency)

    async def record(self, key: str, prompt: dict, n: int) -> tuple[str, dict | None, Refused | None]:
        """Return (key, what progress keeps of the question, None), or (key, None, why there is nothing)."""
        seeds = [seed_of(self.protocol.seed, key, i) for i in range(n)]
        try:
            responses = await _all(self.ask(prompt, seed) for seed in seeds)
        except Refused as error:
            return key, None, error
        return key, {**_columns(responses), "seed": self.protocol.seed}, None

    async def ask(self, prompt: dict, seed: int) -> Response:
        """Return one response.

        Raises:
            Refused: the server does not answer this. GenerationError: it will not answer this command.
        """
        import openai

        limits, body = self.endpoint.limits, {}
        try:
            async with self._room:
                path, body = self.request(prompt, seed)
                answer = await asyncio.wait_for(
                    self.client.post(path, body=body, cast_to=object), timeout=limits.timeout
                )
        except (openai.APIError, asyncio.TimeoutError, ValueError, RecursionError) as error:
            status, why = getattr(error, "status_code", None), self.endpoint.cause(error, limits)
            if status in ENDS_COMMAND:
                raise GenerationError(why) from None
            if not status or not 400 <= status < 500 or status in RETRIED:
                raise GaveUp(why) from None
            named = [name for name in OMITTABLE if name in body and name in why]
            hint = f"; --omit_fields {' '.join(named)} asks without" if named else ""
            raise Refused(f"{why}{hint}") from None
        return self.read(answer, prompt)

    def read(self, answer: object, prompt: dict) -> Response:
        """Return the response in what a server answers to a request for one.

        Raises:
            GaveUp: there is none.
        """
        choices = answer.get("choices") if isinstance(answer, dict) else None
        choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        text = text_of(choice) if isinstance(choice, dict) else None
        if text is None or choice.get("finish_reason") in BROKEN_OFF:
            words = excerpt(self.endpoint.without_key(str(answer)))
            raise GaveUp(f"{shown(self.endpoint.url)} answered without a response: {words}")
        why, counted, limit = (
            choice.get("finish_reason"),
            used(answer, "completion_tokens"),
            self.protocol.max_new_tokens,
        )
        facts = {
            "uncounted": counted is None,
            "withheld": why == "content_filter",
            "cut_early": why == "length" and counted is not None and counted < limit,
        }
        return Response(
            self.with_beginning(prompt, self.endpoint.without_key(text)),
            max(1, len(text) // CHARS_PER_TOKEN) if counted is None else counted,
            "length" if why == "length" else "stop",
            used(answer, "prompt_tokens"),
            tuple(name for name, so in facts.items() if so),
        )

    def with_beginning(self, prompt: dict, text: str) -> str:
        """Return a response with the <think> that its prompt ends with, where thoughts are told from answers."""
        begun = self.protocol.strip_think and "prompt" in prompt and not text.startswith(THINK)
        return begun_thinking(prompt["prompt"]) + text if begun else text

    def request(self, prompt: dict, seed: int) -> tuple[str, dict]:
        """Return (path, body) of a request for one response."""
        protocol, is_chat = self.protocol, self.form.chat_template
        told = {"seed": seed, "temperature": protocol.temperature, "top_p": protocol.top_p}
        length = "max_completion_tokens" if is_chat and "max_tokens" in self.endpoint.omitted else "max_tokens"
        body = {"model": self.endpoint.name, **prompt, length: protocol.max_new_tokens}
        body |= {name: value for name, value in told.items() if name not in self.endpoint.omitted}
        if protocol.stop:
            body["stop"] = list(protocol.stop)
        if self.endpoint.is_vllm:
            body |= self._of_vllm()
        return "/chat/completions" if is_chat else "/completions", body

    def _of_vllm(self) -> dict:
        """Return what the engines here are told, or do, and the API has no word for."""
        return {
            "top_k": self.protocol.top_k,
            "min_p": self.protocol.min_p,
            "repetition_penalty": 1.0,
            "min_tokens": 1,
            "add_special_tokens": self.form.bos,
            **({"chat_template_kwargs": self.form.given()} if self.form.chat_template else {}),
        }


def asked(form: PromptForm, question: str) -> dict:
    """Return the question in the fields of a request."""
    message = prompts.message(form, question)
    if form.chat_template:
        return {"messages": message if isinstance(message, list) else [{"role": "user", "content": message}]}
    return {"prompt": form.input_template.format(message) if form.input_template else message}


def text_of(choice: Mapping) -> str | None:
    """Return the text of a response, with the thoughts that a server gives apart before it; None where there is none."""
    message = choice.get("message")
    if not isinstance(message, dict):
        text = choice.get("text")
        return whole_characters(text) if isinstance(text, str) else None
    content, thought = message.get("content") or "", message.get("reasoning") or message.get("reasoning_content")
    if not isinstance(content, str):
        return None
    if isinstance(thought, str) and thought:
        content = f"<think>\n{thought}" + (f"</think>\n\n{content}" if content else "")
    return whole_characters(content)


def used(answer: Mapping, name: str) -> int | None:
    """Return a count of tokens that the server has used; None where it is none."""
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


def _columns(responses: Sequence[Response]) -> dict:
    """Return what progress keeps of a question's responses."""
    prompt = responses[0].prompt_tokens
    facts = Counter(fact for response in responses for fact in response.facts)
    return {
        **({} if prompt is None else {"prompt_tokens": prompt}),
        "responses": [response.text for response in responses],
        "lengths": [response.length for response in responses],
        "finish_reasons": [response.reason for response in responses],
        **({FACTS: dict(facts)} if facts else {}),
    }
