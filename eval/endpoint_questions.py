"""Questions to a model behind a server: what is sent for one, what is read from the answer.

Chat completions take the question's text and put it into the chat template, which is the server's; completions take the
prompt as it is. vLLM's server applies the defaults of the model's generation_config.json to all that a request does not
say (temperature, top-k, repetition penalty …), so it is told all of them.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from openrlhf_ebpo.files import whole_characters
from openrlhf_ebpo.generation.engines import GenerationError
from openrlhf_ebpo.rewards.servers import shown

from . import endpoint_notes, prompts, thinking
from .endpoint import Endpoint, template_begins
from .endpoint_client import TRIES, Client, GaveUp, Refused, Trouble, client, without
from .prompts import PromptForm
from .protocols import Protocol

PER_TOKEN = 256  # bytes of JSON; a token of 128 spaces is one, too
CHARACTERS_PER_TOKEN = 4  # where the server counts none
BROKEN_OFF = ("abort", "error")  # reasons of a response that its model has not ended
REFUSED_IN_A_ROW = 16  # questions, and none answered: it is not the questions
LARGEST = (1 << 31) - 1  # count of tokens that a result has room for
BELIEVED = 16  # times as many tokens as were asked for: some servers count thoughts that they do not send
SAMPLING = {name: re.compile(rf"\b{name.replace('_', '[_-]?')}\b", re.I) for name in ("top_p", "temperature")}
DEFAULT = 1  # of the API, for both

Question = tuple[str, dict, int]  # key, `asked`, number of responses


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
    """Give every question's record to `keep` as it comes; the others' keys, and why they have no responses.

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
    facts: Counter[str] = Counter()
    in_a_row = 0
    async with client(endpoint.url, endpoint.key, endpoint.limits, say) as asking:
        asker = Asker(endpoint, asking, form, protocol)
        if protocol.strip_think and form.chat_template:
            asker.template_begins = await template_begins(endpoint, form, say)
        tasks = [asyncio.create_task(asker.record(*question)) for question in questions]
        try:
            for each in asyncio.as_completed(tasks):
                key, record, error = await each
                if error is None:
                    keep(key, record)
                    facts.update(record.get(endpoint_notes.FACTS, {}))
                    in_a_row, answered = 0, True
                    continue
                failed[key] = error
                in_a_row += isinstance(error, GaveUp) or not (leave_out and answered)
                if in_a_row >= REFUSED_IN_A_ROW:
                    raise GenerationError(_in_vain(in_a_row, error, answered))
        finally:
            await cancelled(tasks)
    for level, note in endpoint_notes.notes(facts, protocol):
        say(f"{level}: {note}")
    return failed


def _in_vain(count: int, error: Refused, answered: bool) -> str:
    but = "; it has answered others: --leave_out_refused, if it is the questions"
    return (
        f"{count} questions in a row got no responses; the last: {error}"
        f"{but if answered and not isinstance(error, GaveUp) else ''}"
    )


async def cancelled(tasks: Sequence[asyncio.Task]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Asker:
    """What is asked of an endpoint, and what has been learnt of it on the way.

    Attributes:
        gives_n, lacks_n: whether it has given several responses to one request, and whether only one at a time.
        unsaid: fields that it does not take. length_field: how it names the longest response; some models of chat
        completions take only the newer name.
        template_begins: what its chat template begins a response with, where that is to be recorded.
    """

    def __init__(self, endpoint: Endpoint, asking: Client, form: PromptForm, protocol: Protocol):
        self.endpoint, self.client, self.form, self.protocol = endpoint, asking, form, protocol
        self.gives_n, self.lacks_n, self.length_field = False, False, "max_tokens"
        self.unsaid: set[str] = set()
        self.template_begins = ""
        self._room = asyncio.Semaphore(endpoint.limits.concurrency)  # later questions use what earlier ones have taught

    async def record(self, key: str, prompt: dict, n: int) -> tuple[str, dict | None, Refused | None]:
        """(key, what progress keeps of the question, None), or (key, None, why there is nothing)."""
        try:
            async with self._room:
                responses = await self.responses(key, prompt, n)
        except Refused as error:
            return key, None, error
        return key, {**_columns(responses), "seed": self.protocol.seed}, None

    async def responses(self, key: str, prompt: dict, n: int) -> list[Response]:
        """n of them: of one request if the server gives so many, else of one request each.

        Raises:
            Refused: the server does not answer this question.
        """
        found, several = [], n > 1 and (self.gives_n or not self.lacks_n)
        if several:
            try:
                found = await self.ask(prompt, n, seed_of(self.protocol.seed, key, 0))
            except Refused as error:  # of n, or of the question: one alone will tell
                if self.gives_n and isinstance(error, GaveUp):
                    raise
            if len(found) == n:
                self.gives_n = True
                return found
        more = [self.ask(prompt, 1, seed_of(self.protocol.seed, key, i)) for i in range(len(found), n)]
        tasks = [asyncio.create_task(each) for each in more]
        try:
            alone = [response for responses in await asyncio.gather(*tasks) for response in responses]
        finally:
            await cancelled(tasks)
        self.lacks_n = self.lacks_n or several
        return found + [each.but(endpoint_notes.ONE_BY_ONE) if n > 1 else each for each in alone]

    async def ask(self, prompt: dict, n: int, seed: int) -> list[Response]:
        """1 to n responses.

        Raises:
            Refused: the server does not answer this, or answers with something else. GenerationError: it asked otherwise.
        """
        path, body = self.request(prompt, n, seed)
        try:
            found = await self.client.post(path, body, self.longest(n), functools.partial(self._read, n))
        except GaveUp:
            raise
        except Refused as error:
            return await self._ask_otherwise(error, body, prompt, n, seed)
        facts = [endpoint_notes.UNSAID[name] for name in endpoint_notes.UNSAID if name not in body]
        texts = (self.with_beginning(prompt, without(self.endpoint.key, response.text)) for response in found)
        return [replace(response, text=text).but(*facts) for response, text in zip(found, texts, strict=True)]

    def _read(self, n: int, answer: dict) -> list[Response]:
        self._check_begin(answer)
        longest = self.protocol.max_new_tokens
        # vLLM has looked for them itself, and not in the first token, as engines here
        stop = () if self.endpoint.is_vllm else self.protocol.stop
        found = responses_of(answer, n, stop, min(n * longest * BELIEVED, LARGEST))
        if found is None:
            what = f"{shown(self.endpoint.url)} answered without {n} choices: {self.client.clean(str(answer))}"
            raise Trouble(what, TRIES // 4, answered=True)
        return [each.but(endpoint_notes.CUT_EARLY) if each.cut_before(longest) else each for each in found]

    async def _ask_otherwise(self, error: Refused, body: dict, prompt: dict, n: int, seed: int) -> list[Response]:
        """`ask` again, where the refusal says which field another request should have, or lack."""
        named = [name for name, word in SAMPLING.items() if name in body and word.search(str(error))]
        needless = [name for name in named if body[name] == DEFAULT and not self.endpoint.is_vllm]
        if self._learns(str(error), body):
            return await self.ask(prompt, n, seed)
        if not needless:
            about = " and ".join(f"--{name} {body[name]:g}" for name in named)
            raise Refused(f"{error} (of this protocol: {about})" if named else str(error)) from None
        self.unsaid.add(needless[0])
        try:
            return await self.ask(prompt, n, seed)
        except Refused:
            self.unsaid.discard(needless[0])  # it was not that
            raise

    def with_beginning(self, prompt: dict, text: str) -> str:
        """A response with the <think> that its prompt has begun it with, where thoughts are told from answers."""
        if not self.protocol.strip_think or text.startswith(thinking.THINK):
            return text  # as it is where the server gives thoughts apart
        return (thinking.begun(prompt["prompt"]) if "prompt" in prompt else self.template_begins) + text

    def _check_begin(self, answer: dict) -> None:
        """Raises GenerationError where the begin token stood before the prompt twice: here, it is added where a chat
        template has not written it, and vLLM adds it always."""
        ids = answer.get("prompt_token_ids")
        if self.form.bos and self.form.chat_template and isinstance(ids, list) and len(ids) > 1 and ids[0] == ids[1]:
            raise GenerationError(
                f"{shown(self.endpoint.url)} puts the begin token before its chat template, which has one already: "
                "--no-add_bos asks with that one"
            )

    def _learns(self, error: str, body: dict) -> bool:
        """Whether the refusal of a request says which field another should have, or lack."""
        if "messages" in body and "max_tokens" in body and "max_completion_tokens" in error:
            self.length_field = "max_completion_tokens"
        elif "seed" in body and re.search(r"\bseed\b", error):
            self.unsaid.add("seed")
        else:
            return False
        return True

    def request(self, prompt: dict, n: int, seed: int) -> tuple[str, dict]:
        """(path, body)."""
        chat, protocol = self.form.chat_template, self.protocol
        told = {"seed": seed, "temperature": protocol.temperature, "top_p": protocol.top_p}
        body = {
            "model": self.endpoint.name,
            **prompt,
            **({"n": n} if n > 1 else {}),
            **{name: value for name, value in told.items() if name not in self.unsaid},
            (self.length_field if chat else "max_tokens"): protocol.max_new_tokens,
            **({"stop": list(protocol.stop)} if protocol.stop else {}),
        }
        return "chat/completions" if chat else "completions", {
            **body,
            **(self._of_vllm() if self.endpoint.is_vllm else {}),
        }

    def _of_vllm(self) -> dict:
        """What the engines here are told, or do, and the API has no word for."""
        return {
            "top_k": self.protocol.top_k,
            "min_p": self.protocol.min_p,
            "repetition_penalty": 1.0,
            "min_tokens": 1,
            "return_token_ids": True,
            "add_special_tokens": self.form.bos,
            **({"chat_template_kwargs": self.form.given()} if self.form.chat_template else {}),
        }

    def longest(self, n: int) -> int:
        """Bytes of an answer."""
        return (1 << 20) + n * self.protocol.max_new_tokens * PER_TOKEN


@dataclass(frozen=True)
class Response:
    """One response. counted: whether its length is from the server; exact: and of it alone. prompt_tokens: None where the
    server has not counted them. facts: what is out of the ordinary (endpoint_notes)."""

    text: str
    length: int
    reason: str
    counted: bool = True
    prompt_tokens: int | None = None
    exact: bool = False
    facts: tuple[str, ...] = ()

    def but(self, *facts: str) -> Response:
        return replace(self, facts=(*self.facts, *facts))

    def cut_before(self, longest: int) -> bool:
        return self.exact and self.reason == "length" and self.length < longest


def _columns(responses: Sequence[Response]) -> dict:
    prompt = responses[0].prompt_tokens
    facts = Counter(fact for response in responses for fact in response.facts)
    return {
        **({} if prompt is None else {"prompt_tokens": prompt}),
        "responses": [response.text for response in responses],
        "lengths": [response.length for response in responses],
        "finish_reasons": [response.reason for response in responses],
        **({endpoint_notes.FACTS: dict(facts)} if facts else {}),
    }


def asked(form: PromptForm, question: str) -> dict:
    """The question in the fields of a request."""
    message = prompts.message(form, question)
    if form.chat_template:
        return {"messages": message if isinstance(message, list) else [{"role": "user", "content": message}]}
    return {"prompt": form.input_template.format(message) if form.input_template else message}


def responses_of(answer: dict, n: int, stop: Sequence[str] = (), most: int = LARGEST) -> list[Response] | None:
    """The responses in a server's answer to a request for n; None where they are not 1 to n whole ones, or it holds something
    else. stop: texts that end one, where the server has not looked for them. most: tokens, if its count is to be believed."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not 1 <= len(choices) <= n or not all(isinstance(c, dict) for c in choices):
        return None
    texts = [text_of(choice) for choice in choices]
    if None in texts or any(choice.get("finish_reason") in BROKEN_OFF for choice in choices):
        return None
    prompt, lengths = used(answer, "prompt_tokens"), lengths_of(answer, choices, texts, most)
    return [_response(*each, prompt, stop) for each in zip(choices, texts, lengths, strict=True)]


def _response(
    choice: dict, text: str, length: tuple[int, bool, bool], prompt: int | None, stop: Sequence[str]
) -> Response:
    tokens, counted, exact = length
    kept = text_of(choice, stop)
    cut, why = kept != text, choice.get("finish_reason")
    facts = {
        endpoint_notes.UNCOUNTED: not counted,
        endpoint_notes.WITHHELD: why == endpoint_notes.FILTER,
        endpoint_notes.STOPPED: cut,
    }
    reason = "length" if why == "length" and not cut else "stop"
    return Response(kept, tokens, reason, counted, prompt, exact, tuple(name for name, so in facts.items() if so))


def text_of(choice: dict, stop: Sequence[str] = ()) -> str | None:
    """The text of a response, with what the model thought before it where the server gives that apart. stop: as
    responses_of has it; thoughts apart are left as they are."""
    message = choice.get("message")
    if not isinstance(message, dict):
        text = choice.get("text")
        return whole_characters(before(stop, text)) if isinstance(text, str) else None
    content, thought = message.get("content"), message.get("reasoning") or message.get("reasoning_content")
    if not isinstance(content, str | None):
        return None
    content = before(stop, content or "")
    if isinstance(thought, str) and thought:
        end = "</think>\n\n" if content else ""
        return whole_characters(f"<think>\n{thought}{end}{content}")
    return whole_characters(content)


def before(stop: Sequence[str], text: str) -> str:
    """The text up to the first of the stop texts."""
    return text[: min((end for each in stop if (end := text.find(each)) >= 0), default=len(text))]


def lengths_of(
    answer: dict, choices: Sequence[dict], texts: Sequence[str], most: int = LARGEST
) -> list[tuple[int, bool, bool]]:
    """Tokens of each response, whether the server has counted them, and whether it has those of each. Of several responses
    to one request, servers other than vLLM's count the sum: it is shared out by characters."""
    ids = [choice.get("token_ids") for choice in choices]
    if all(isinstance(each, list) for each in ids):
        return [(len(each), True, True) for each in ids]
    total = used(answer, "completion_tokens", most)
    if total is None:
        return [(max(1, len(text) // CHARACTERS_PER_TOKEN), False, False) for text in texts]
    return [(tokens, True, len(texts) == 1) for tokens in shared(total, [len(text) for text in texts])]


def used(answer: dict, name: str, most: int = LARGEST) -> int | None:
    """A count of tokens in what the server says it has used; None where it is none, or more than `most`."""
    usage = answer.get("usage")
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if type(found) is int and 0 <= found <= most else None


def shared(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole parts, as near to the weights as may be."""
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight + 1)
    ends = [round(total * each / sums[-1]) for each in sums]
    return [after - before for before, after in itertools.pairwise(ends)]


def seed_of(seed: int, key: str, sample: int) -> int:
    """Of a request: the protocol's, the question and the response's number make it, whenever it is asked."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}/{sample}".encode()).digest()[:4], "big") >> 1
