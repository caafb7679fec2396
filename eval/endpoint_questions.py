"""Questions to a model behind a server: what is sent for one, what is read from the answer.

Chat completions take the question's text and put it into the chat template, which is the server's; completions take the
prompt as it is. vLLM's server applies the defaults of the model's generation_config.json to all that a request does not
say (temperature, top-k, repetition penalty …), so it is told all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from openrlhf_ebpo.engines.generation import GenerationError
from openrlhf_ebpo.files import whole_characters
from openrlhf_ebpo.rewards.servers import shown

from . import prompts, thinking
from .endpoint import Endpoint, template_begins
from .endpoint_client import Client, Refused, client, without
from .prompts import PromptForm
from .protocols import Protocol

PER_TOKEN = 256  # bytes of JSON; a token of 128 spaces is one, too
CHARACTERS_PER_TOKEN = 4  # where the server counts none
BROKEN_OFF = ("abort", "error")  # reasons of a response that its model has not ended
WITHHELD = "content_filter"
REFUSED_IN_A_ROW = 16  # questions, and none answered: it is not the questions

Question = tuple[str, dict, int]  # key, `asked`, number of responses


def respond(
    endpoint: Endpoint,
    questions: Sequence[Question],
    form: PromptForm,
    protocol: Protocol,
    keep: Callable[[str, dict], None],
    say: Callable[[str], None] = print,
) -> dict[str, str]:
    """Give every question's record to `keep` as it comes; the others' keys, and why they have no responses.

    Raises:
        GenerationError: the server answers nobody, or will not answer this command.
    """
    return asyncio.run(_respond(endpoint, questions, form, protocol, keep, say))


async def _respond(endpoint, questions: Iterable[Question], form, protocol, keep, say) -> dict[str, str]:
    failed: dict[str, str] = {}
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
                    in_a_row = 0
                    continue
                failed[key] = error
                in_a_row += 1
                if in_a_row >= REFUSED_IN_A_ROW:
                    raise GenerationError(f"{in_a_row} questions in a row got no responses; the last: {error}")
        finally:
            await cancelled(tasks)
    for note in asker.notes(protocol):
        say(note)
    return failed


async def cancelled(tasks: Sequence[asyncio.Task]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Asker:
    """What is asked of an endpoint, and what has been learnt of it on the way.

    Attributes:
        takes_n: whether it gives several responses to one request. takes_seed: whether it takes a seed.
        length_field: how it names the longest response; some models of chat completions take only the newer name.
        template_begins: what its chat template begins a response with, where that is to be recorded.
    """

    def __init__(self, endpoint: Endpoint, asking: Client, form: PromptForm, protocol: Protocol):
        self.endpoint, self.client, self.form, self.protocol = endpoint, asking, form, protocol
        self.takes_n, self.takes_seed, self.length_field = True, True, "max_tokens"
        self.template_begins = ""
        self.uncounted, self.cut_early, self.withheld = 0, 0, 0
        self._room = asyncio.Semaphore(endpoint.limits.concurrency)  # later questions use what earlier ones have taught

    async def record(self, key: str, prompt: dict, n: int) -> tuple[str, dict | None, str | None]:
        """(key, what progress keeps of the question, None), or (key, None, why there is nothing)."""
        try:
            async with self._room:
                responses = await self.responses(key, prompt, n)
        except Refused as error:
            return key, None, str(error)
        return key, {**_columns(responses), "seed": self.protocol.seed}, None

    async def responses(self, key: str, prompt: dict, n: int) -> list[Response]:
        """n of them: of one request if the server gives so many, else of one request each.

        Raises:
            Refused: the server does not answer this question.
        """
        found, several = [], self.takes_n and n > 1
        if several:
            try:
                found = await self.ask(prompt, n, seed_of(self.protocol.seed, key, 0))
            except Refused:  # of n, or of the question: one alone will tell
                found = []
            if len(found) == n:
                return found
        more = [self.ask(prompt, 1, seed_of(self.protocol.seed, key, i)) for i in range(len(found), n)]
        tasks = [asyncio.create_task(each) for each in more]
        try:
            found += [response for responses in await asyncio.gather(*tasks) for response in responses]
        finally:
            await cancelled(tasks)
        self.takes_n = self.takes_n and not several
        return found

    async def ask(self, prompt: dict, n: int, seed: int) -> list[Response]:
        """1 to n responses.

        Raises:
            Refused: the server does not answer this, or answers with something else. GenerationError: it asked otherwise.
        """
        path, body = self.request(prompt, n, seed)
        try:
            answer = await self.client.post(path, body, self.longest(n))
        except Refused as error:
            if not self._learns(str(error), body):
                raise
            return await self.ask(prompt, n, seed)
        self._check_begin(answer)
        found = responses_of(answer, n)
        if found is None:
            raise Refused(f"{shown(self.endpoint.url)} answered without {n} choices: {self.client.clean(str(answer))}")
        self._count(found)
        self.withheld += sum(choice.get("finish_reason") == WITHHELD for choice in answer["choices"])
        texts = (self.with_beginning(prompt, without(self.endpoint.key, response.text)) for response in found)
        return [replace(response, text=text) for response, text in zip(found, texts, strict=True)]

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
            self.takes_seed = False
        else:
            return False
        return True

    def request(self, prompt: dict, n: int, seed: int) -> tuple[str, dict]:
        """(path, body)."""
        chat, protocol = self.form.chat_template, self.protocol
        body = {
            "model": self.endpoint.name,
            **prompt,
            **({"n": n} if n > 1 else {}),
            **({"seed": seed} if self.takes_seed else {}),
            "temperature": protocol.temperature,
            "top_p": protocol.top_p,
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

    def _count(self, found: Sequence[Response]) -> None:
        self.uncounted += sum(not response.counted for response in found)
        if len(found) == 1:  # of several, the length of each may be a share of their sum
            only = found[0]
            self.cut_early += only.counted and only.reason == "length" and only.length < self.protocol.max_new_tokens

    def notes(self, protocol: Protocol) -> list[str]:
        found = []
        if not self.takes_n:
            found.append("note: the server does not give n responses to one request: they were asked for one by one")
        if not self.takes_seed:
            found.append("note: the server takes no seed")
        if self.uncounted:
            found.append(
                f"note: the server did not count the tokens of {self.uncounted} responses; their lengths are estimated from "
                "their characters"
            )
        if self.withheld:
            found.append(
                f"warning: the server withheld {self.withheld} responses ({WITHHELD}); they count as they came"
            )
        if self.cut_early:
            found.append(
                f"warning: the server cut {self.cut_early} responses before --max_new_tokens {protocol.max_new_tokens}: it has "
                "a limit of its own"
            )
        return found


@dataclass(frozen=True)
class Response:
    """One response. counted: whether its length is from the server. prompt_tokens: None where it has not counted them."""

    text: str
    length: int
    reason: str
    counted: bool = True
    prompt_tokens: int | None = None


def _columns(responses: Sequence[Response]) -> dict:
    prompt = responses[0].prompt_tokens
    return {
        **({} if prompt is None else {"prompt_tokens": prompt}),
        "responses": [response.text for response in responses],
        "lengths": [response.length for response in responses],
        "finish_reasons": [response.reason for response in responses],
    }


def asked(form: PromptForm, question: str) -> dict:
    """The question in the fields of a request."""
    message = prompts.message(form, question)
    if form.chat_template:
        return {"messages": message if isinstance(message, list) else [{"role": "user", "content": message}]}
    return {"prompt": form.input_template.format(message) if form.input_template else message}


def responses_of(answer: dict, n: int) -> list[Response] | None:
    """The responses in a server's answer to a request for n; None where they are not 1 to n whole ones, or it holds something
    else."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not 1 <= len(choices) <= n or not all(isinstance(c, dict) for c in choices):
        return None
    texts = [text_of(choice) for choice in choices]
    if None in texts or any(choice.get("finish_reason") in BROKEN_OFF for choice in choices):
        return None
    reasons = ["length" if choice.get("finish_reason") == "length" else "stop" for choice in choices]
    return [
        Response(text, length, reason, counted, used(answer, "prompt_tokens"))
        for text, (length, counted), reason in zip(texts, lengths_of(answer, choices, texts), reasons, strict=True)
    ]


def text_of(choice: dict) -> str | None:
    """The text of a response, with what the model thought before it where the server gives that apart."""
    message = choice.get("message")
    if not isinstance(message, dict):
        text = choice.get("text")
        return whole_characters(text) if isinstance(text, str) else None
    content, thought = message.get("content"), message.get("reasoning") or message.get("reasoning_content")
    if not isinstance(content, str | None):
        return None
    if isinstance(thought, str) and thought:
        end = "</think>\n\n" if content else ""
        return whole_characters(f"<think>\n{thought}{end}{content or ''}")
    return whole_characters(content or "")


def lengths_of(answer: dict, choices: Sequence[dict], texts: Sequence[str]) -> list[tuple[int, bool]]:
    """Tokens of each response, and whether the server has counted them. Of several responses to one request, servers other
    than vLLM's count the sum: it is shared out by characters."""
    ids = [choice.get("token_ids") for choice in choices]
    if all(isinstance(each, list) for each in ids):
        return [(len(each), True) for each in ids]
    total = used(answer, "completion_tokens")
    if total is None:
        return [(max(1, len(text) // CHARACTERS_PER_TOKEN), False) for text in texts]
    return [(tokens, True) for tokens in shared(total, [len(text) for text in texts])]


def used(answer: dict, name: str) -> int | None:
    """A count of tokens in what the server says it has used."""
    usage = answer.get("usage")
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if type(found) is int and 0 <= found < 1 << 40 else None


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
