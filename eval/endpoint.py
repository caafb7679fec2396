"""A model behind an OpenAI-compatible server, --model openai:URL#NAME: its address and key, and what the server says of
it.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.generation.engines import GenerationError
from openrlhf_ebpo.redact import Secret
from openrlhf_ebpo.rewards.servers import excerpt, shown
from openrlhf_ebpo.run.results import SERVER as PREFIX

from .endpoint_client import BadStatus, Limits, Refused, Trouble, client, is_local, may_pass, without
from .prompts import PromptForm
from .protocols import Protocol
from .thinking import THINK, begun

KEY = "OPENAI_API_KEY"
FLAGS = ("api_key_env", "concurrency", "requests_per_minute", "request_timeout", "give_up_after")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LIST_LIMITS = Limits(concurrency=1, timeout=30.0, give_up_after=60.0)
TEMPLATE_LIMITS = Limits(concurrency=1, timeout=30.0, give_up_after=30.0)
LONGEST_LIST = 8 << 20  # bytes of a server's list of models, or of a short chat's tokens
SPACES_AT_END = re.compile(r"(?:[ĠĊĉ▁\s]|<0x(?:0A|20|09)>)+\Z")  # as byte-level and SentencePiece tokenizers write them
VLLM_ONLY = ("top_k", "min_p", "template_kwargs")  # settings of a protocol that the API does not have
NOT_LISTED = (403, 404, 405, 501)  # the server does not show its list


@dataclass(frozen=True)
class Endpoint:
    """url: of the API, such as https://host/v1. name: of the model there. root, max_model_len: what the server's list says
    of it. is_vllm: whether the list is one of vLLM's, which takes more settings than the API has."""

    url: str
    name: str
    limits: Limits = field(default_factory=Limits)
    key: Secret | None = None
    root: str = ""
    max_model_len: int | None = None
    is_vllm: bool = False

    def identity(self) -> dict[str, str]:
        """What tells the model apart from others, as far as a server tells: not its weights."""
        place = urlsplit(self.url)
        served = {"root": self.root, "max_model_len": self.max_model_len}
        return {
            "model": f"{PREFIX}{place.netloc}{place.path}#{self.name}",
            "served": ", ".join(f"{name} {value}" for name, value in served.items() if value),
        }


def is_endpoint(model: str | None) -> bool:
    return bool(model) and model.startswith(PREFIX)


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(f"server: of --model {PREFIX}URL#NAME").add_argument
    add("--api_key_env", metavar="NAME", help=f"environment variable that holds the key (default: {KEY}, if it is set)")
    add("--concurrency", type=int, metavar="N", help=f"requests at once ({Limits.concurrency})")
    add("--requests_per_minute", type=float, metavar="N", help="at most (default: any number)")
    add("--request_timeout", type=float, metavar="SECONDS", help=f"of one request, all of it ({Limits.timeout:g})")
    add(
        "--give_up_after",
        type=float,
        metavar="SECONDS",
        help=f"end the command where nothing but errors has come for so long ({Limits.give_up_after:g})",
    )


def flag_problems(args: argparse.Namespace, engine_flags: dict) -> list[str]:
    """What is wrong with the flags about where the model runs. engine_flags: with their defaults."""
    if not is_endpoint(args.model):
        return [f"--{name} goes with --model {PREFIX}URL#NAME" for name in FLAGS if getattr(args, name) is not None]
    local = {**engine_flags, "max_model_len": None}
    problems = [
        f"--{name}: the server at --model {PREFIX}… has its own" for name in local if getattr(args, name) != local[name]
    ]
    numbers = {name: getattr(args, name) for name in FLAGS[1:] if getattr(args, name) is not None}
    problems += [f"--{name} {value:g} makes no sense" for name, value in numbers.items() if not 0 < value < 1e9]
    if args.api_key_env is not None and not VARIABLE.fullmatch(args.api_key_env):
        problems.append("--api_key_env takes the name of a variable, not the key")
    return problems


def connect(args: argparse.Namespace, say: Callable[[str], None] = print) -> Endpoint:
    """The endpoint that --model names, with what the server says of it.

    Raises:
        UsageError: the address, the key's variable or the server's answer is none.
    """
    url, name = parsed(args.model)
    found = Endpoint(url, name, limits_of(args), key_of(args.api_key_env, url, say))
    found = asyncio.run(_listed(found, say))
    if not found.is_vllm:
        say(
            f"note: {shown(url)} does not say that it is vLLM: what the API cannot set (top-k, min-p, repetition penalty) "
            "is as this server has it"
        )
    return found


def parsed(model: str) -> tuple[str, str]:
    """(URL, name) of openai:URL#NAME.

    Raises:
        UsageError: it is none that could be asked, or it holds a password.
    """
    url, _, name = model.removeprefix(PREFIX).partition("#")
    example = f"write {PREFIX}http://localhost:8000/v1#NAME"
    try:
        parts = urlsplit(url)
        place, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"--model {excerpt(model)}: {excerpt(str(error))}: {example}") from None
    if "@" in url.split("?")[0]:  # anywhere: without its scheme, an address has no place for a password
        at = shown(url) if "@" in parts.netloc else "…"
        raise UsageError(f"--model {PREFIX}{at}: no name or password in an address: --api_key_env NAME")
    if parts.query or "?" in url:
        raise UsageError(f"--model {PREFIX}{shown(url)}: what stands behind its ? is not sent: {example}")
    if parts.scheme not in ("http", "https") or not place or not url.isprintable() or " " in url:
        raise UsageError(f"--model {excerpt(model)}: that is no address of a server: {example}")
    if not name.strip() or not name.isprintable():
        raise UsageError(f"--model {excerpt(model)}: which of the server's models? {example}")
    return url.rstrip("/"), name


def limits_of(args: argparse.Namespace) -> Limits:
    given = {
        "concurrency": args.concurrency,
        "per_minute": args.requests_per_minute,
        "timeout": args.request_timeout,
        "give_up_after": args.give_up_after,
    }
    return replace(Limits(), **{name: value for name, value in given.items() if value is not None})


def key_of(variable: str | None, url: str, say: Callable[[str], None]) -> Secret | None:
    """The key, if there is one and it may go to this address.

    Raises:
        UsageError: the variable that --api_key_env names does not hold one. It is not repeated: it may be the key.
    """
    key = os.environ.get(variable or KEY, "").strip()
    if variable and not key:
        raise UsageError("--api_key_env: the environment has no variable of that name, or it is empty")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UsageError(f"{variable or KEY} holds what no server takes as a key (spaces, line ends or other signs)")
    parts = urlsplit(url)
    if key and parts.scheme == "http" and not is_local(parts.hostname):
        if not variable:
            say(f"warning: {KEY} is not sent, for {shown(url)} is plain http; --api_key_env {KEY} sends it")
            return None
        say(f"warning: the key goes to {shown(url)} over plain http, where others can read it")
    return Secret(key) if key else None


async def _listed(endpoint: Endpoint, say: Callable[[str], None]) -> Endpoint:
    """The endpoint with what the server's list of models says.

    Raises:
        UsageError: the server cannot be reached, or does not answer as such servers do.
    """
    limits = replace(LIST_LIMITS, give_up_after=min(LIST_LIMITS.give_up_after, endpoint.limits.give_up_after))
    try:
        async with client(endpoint.url, endpoint.key, limits, say) as asking:
            found = await asking.get("models", LONGEST_LIST)
    except BadStatus as error:
        if error.status in NOT_LISTED:
            say(f"note: {error}: the server does not list its models, and so does not say which {endpoint.name} is")
            return endpoint
        raise UsageError(f"--model {PREFIX}{shown(endpoint.url)}: {error}: {hint_of(error.status)}") from None
    except Trouble as error:
        raise UsageError(f"--model: {error}: is the server up, and the address right? It mostly ends in /v1") from None
    return with_card(endpoint, found, say)


def hint_of(status: int) -> str:
    if status == 401:
        return "is the key in --api_key_env for this server?"
    return "is the server still starting, or overloaded?" if may_pass(status) else "is it an OpenAI-compatible server?"


def with_card(endpoint: Endpoint, found: dict | list, say: Callable[[str], None]) -> Endpoint:
    """found: the server's list of models, which some vendors write bare."""
    listed = found if isinstance(found, list) else found.get("data")
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    card = next((card for card in cards if card.get("id") == endpoint.name), None)
    if card is None:
        names = [str(card.get("id")) for card in cards]
        near = difflib.get_close_matches(endpoint.name, names, 3, 0.4) or names[:3]
        say(
            f"warning: {shown(endpoint.url)} does not list {endpoint.name!r}; of its {len(names)} models: "
            f"{excerpt(', '.join(near))}"
        )
        return endpoint
    root, length = card.get("root"), card.get("max_model_len")
    return replace(
        endpoint,
        root=excerpt(without(endpoint.key, root)) if isinstance(root, str) and root else "",
        max_model_len=length if type(length) is int and length > 0 else None,
        is_vllm=card.get("owned_by") == "vllm",
    )


def check(endpoint: Endpoint, protocol: Protocol, form: PromptForm) -> None:
    """Check that the server can do what is asked of it.

    Raises:
        UsageError: it cannot.
    """
    own = [f"--{name}" for name in VLLM_ONLY if getattr(protocol, name) != getattr(Protocol, name)]
    own += ["--add_bos"] if form.bos else []
    if own and not endpoint.is_vllm:
        of_run = " (--no-add_bos, where the run was trained with it)" if form.bos else ""
        raise UsageError(
            f"{', '.join(own)}: the API has no such setting; vLLM's server has, and {shown(endpoint.url)} does not say in its "
            f"list of models that it is one; leave it out{of_run}"
        )
    room = endpoint.max_model_len
    if room is not None and protocol.max_new_tokens >= room:
        raise UsageError(
            f"--max_new_tokens {protocol.max_new_tokens}: {endpoint.name} on this server reads {room} tokens, prompt and "
            "response together; start the server with a longer --max-model-len, or ask for fewer"
        )


async def template_begins(endpoint: Endpoint, form: PromptForm, say: Callable[[str], None]) -> str:
    """As `begun`, of the chat template of a server: vLLM's shows a chat's tokens, beside the API's version. Where it does
    not, that is said: a response that was cut while it thought is then read like an answer."""
    try:
        if endpoint.is_vllm:
            return begun(await _end_of_chat(endpoint, form, say))
        why = "it does not say that it is vLLM"
    except (Refused, GenerationError) as error:
        why = str(error)
    say(
        f"warning: --strip_think: whether the server's chat template begins with {THINK} is not known ({why}). If it does, start "
        "the server with its reasoning parser; else a response that never ends its thoughts may get its answer from them"
    )
    return ""


async def _end_of_chat(endpoint: Endpoint, form: PromptForm, say: Callable[[str], None]) -> str:
    body = {
        "model": endpoint.name,
        "messages": [{"role": "user", "content": "?"}],
        "return_token_strs": True,
        "chat_template_kwargs": form.given(),
    }
    root = replace(endpoint, url=endpoint.url.rpartition("/")[0])
    async with client(root.url, root.key, TEMPLATE_LIMITS, say) as asking:
        found = (await asking.post("tokenize", body, LONGEST_LIST)).get("token_strs")
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise Refused("its answer has no tokens")
    return SPACES_AT_END.sub("", "".join(found[-32:]))


def described(endpoint: Endpoint, form: PromptForm) -> str:
    how = "chat completions, in the server's chat template" if form.chat_template else "completions"
    return f"asked by {how}, {endpoint.limits.concurrency} requests at once; lengths of prompts are not checked"
