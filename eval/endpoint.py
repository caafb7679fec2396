"""A model behind an OpenAI-compatible server, --model openai:URL#NAME: its address and key, and what the server says of
it. Requests, retries, time-outs and proxies are those of the `openai` package.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.generation import engines
from openrlhf_ebpo.generation.engines import EngineSettings
from openrlhf_ebpo.redact import REDACTED, Secret
from openrlhf_ebpo.rewards.servers import excerpt, shown
from openrlhf_ebpo.run.results import SERVER as PREFIX

from .prompts import PromptForm
from .protocols import Protocol

KEY = "OPENAI_API_KEY"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
EXAMPLE = f"write {PREFIX}http://localhost:8000/v1#NAME"
VLLM_ONLY = ("top_k", "min_p", "template_kwargs")  # settings of a protocol that the API does not have
NOT_LISTED = (403, 404, 405, 501)  # the server does not show its list
MIN_KEY_CHARS = 8  # shorter ones are placeholders such as EMPTY, and words of a language
HINTS = {
    401: "is the key in --api_key_env for this server?",
    402: "is the account's credit used up?",
    **dict.fromkeys((404, 405), "has the server a model of that name, and does the address end in /v1?"),
    503: "is the server still starting, or overloaded?",
}


@dataclass(frozen=True)
class Limits:
    """concurrency: requests at once. timeout: seconds for one response, its retries included. retries: of a request, by
    the rules of the `openai` package."""

    concurrency: int = 128
    timeout: float = 1800.0
    retries: int = 8


LIST_LIMITS = Limits(timeout=60.0, retries=2)
FLAGS = {"concurrency": "concurrency", "request_timeout": "timeout", "retries": "retries"}
OMITTABLE = ("seed", "temperature", "top_p", "max_tokens")  # fields of a request


@dataclass(frozen=True)
class Endpoint:
    """url: of the API, such as https://host/v1. name: of the model there. root, max_model_len: what the server's list says
    of it. is_vllm: whether the list is one of vLLM's, which takes more settings than the API has. omitted: fields of
    OMITTABLE that are not sent."""

    url: str
    name: str
    limits: Limits = field(default_factory=Limits)
    key: Secret | None = None
    root: str = ""
    max_model_len: int | None = None
    is_vllm: bool = False
    omitted: tuple[str, ...] = ()

    def identity(self) -> dict[str, str]:
        """Return what tells the model apart from others, as far as a server tells: not its weights."""
        place = urlsplit(self.url)
        served = {"root": self.root, "max_model_len": self.max_model_len}
        return {
            "model": f"{PREFIX}{place.netloc}{place.path}#{self.name}",
            "served": ", ".join(f"{name} {value}" for name, value in served.items() if value),
        }

    def client(self, limits: Limits):
        """Return the package's client, for `async with`. A server on this machine is asked without a proxy."""
        import openai

        return openai.AsyncOpenAI(
            base_url=self.url,
            api_key=str.__str__(self.key) if self.key else "none",
            timeout=limits.timeout,
            max_retries=limits.retries,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=not is_local(urlsplit(self.url).hostname)),
        )

    def without_key(self, text: str) -> str:
        return text.replace(str.__str__(self.key), REDACTED) if self.key and len(self.key) >= MIN_KEY_CHARS else text

    def cause(self, error: Exception, limits: Limits) -> str:
        """Return one line about an error of the client, with the server's own words and without secrets."""
        status, body = getattr(error, "status_code", None), getattr(error, "body", None)
        words = body.get("message", body) if isinstance(body, dict) else body
        if status:
            hint = f": {HINTS[status]}" if status in HINTS else ""
            return f"{shown(self.url)} answered HTTP {status}: {excerpt(self.without_key(str(words or '')))}{hint}"
        if isinstance(error, TimeoutError | asyncio.TimeoutError):
            return f"{shown(self.url)} took longer than {limits.timeout:g} s (--request_timeout)"
        if isinstance(error, ValueError | RecursionError):
            return f"{shown(self.url)} answered with something that is not JSON"
        found = error.__cause__ or error
        return f"{shown(self.url)}: {excerpt(self.without_key(str(found) or type(found).__name__))}"


def is_endpoint(model: str | None) -> bool:
    return bool(model) and model.startswith(PREFIX)


def is_local(host: str | None) -> bool:
    """Return whether a request to this host stays on this machine."""
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost" or str(host).endswith(".localhost")


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(f"server: of --model {PREFIX}URL#NAME").add_argument
    add("--api_key_env", metavar="NAME", help=f"environment variable that holds the key (default: {KEY}, if it is set)")
    add("--concurrency", type=int, metavar="N", help=f"requests at once ({Limits.concurrency})")
    add(
        "--request_timeout",
        type=float,
        metavar="SECONDS",
        help=f"for one response, retries included ({Limits.timeout:g})",
    )
    add("--retries", type=int, metavar="N", help=f"of a request when the server is busy or down ({Limits.retries})")
    add(
        "--omit_fields",
        nargs="+",
        choices=OMITTABLE,
        help="what the server refuses: not sent. temperature, top_p: where they are 1; max_tokens: sent as "
        "max_completion_tokens, in chats",
    )


def flag_problems(args: argparse.Namespace) -> list[str]:
    """Return what is wrong with the flags about where the model runs."""
    given = {name: value for name in FLAGS if (value := getattr(args, name)) is not None}
    if not is_endpoint(args.model):
        given |= {name: value for name in ("api_key_env", "omit_fields") if (value := getattr(args, name)) is not None}
        return [f"--{name} goes with --model {PREFIX}URL#NAME" for name in given]
    local = {**{name: getattr(EngineSettings, name) for name in engines.FLAGS}, "max_model_len": None}
    problems = [
        f"--{name}: the server at --model {PREFIX}… has its own" for name in local if getattr(args, name) != local[name]
    ]
    fine = {name: (value >= 0 if name == "retries" else value > 0) and value < 1e9 for name, value in given.items()}
    problems += [f"--{name} {given[name]:g} makes no sense" for name in given if not fine[name]]
    if args.api_key_env is not None and not VARIABLE.fullmatch(args.api_key_env):
        problems.append("--api_key_env takes the name of a variable, not the key")
    return problems


def connect(args: argparse.Namespace, say: Callable[[str], None] = print) -> Endpoint:
    """Return the endpoint that --model names, with what the server's list of models says of it.

    Raises:
        UsageError: the address or the key cannot be used, or the server does not answer.
    """
    url, name = parsed(args.model)
    key, omitted = key_of(args.api_key_env, url, say), tuple(args.omit_fields or ())
    found = asyncio.run(_listed(Endpoint(url, name, limits_of(args), key, omitted=omitted), say))
    if not found.is_vllm:
        say(
            f"note: {shown(url)} does not say that it is vLLM: what the API cannot set (top-k, min-p, repetition penalty) "
            "is as this server has it"
        )
    return found


def parsed(model: str) -> tuple[str, str]:
    """Return (URL, name) of openai:URL#NAME.

    Raises:
        UsageError: it cannot be asked, or it holds a password.
    """
    url, _, name = model.removeprefix(PREFIX).partition("#")
    try:
        parts = urlsplit(url)
        place, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"--model {excerpt(model)}: {excerpt(str(error))}: {EXAMPLE}") from None
    if "@" in url or "?" in url:
        raise UsageError(
            f"--model {PREFIX}…: no name, password or query belongs in the address; the key: --api_key_env NAME"
        )
    if parts.scheme not in ("http", "https") or not place or not url.isprintable() or " " in url:
        raise UsageError(f"--model {excerpt(model)}: not the address of a server: {EXAMPLE}")
    if not name.strip() or not name.isprintable():
        raise UsageError(f"--model {excerpt(model)}: which of the server's models? {EXAMPLE}")
    return url.rstrip("/"), name


def limits_of(args: argparse.Namespace) -> Limits:
    given = {field: getattr(args, flag) for flag, field in FLAGS.items() if getattr(args, flag) is not None}
    return replace(Limits(), **given)


def key_of(variable: str | None, url: str, say: Callable[[str], None]) -> Secret | None:
    """Return the key, if there is one and it may go to this address.

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
    """Return the endpoint with what the server's list says of its model.

    Raises:
        UsageError: the server cannot be reached, or does not answer as such servers do.
    """
    import openai

    try:
        async with endpoint.client(LIST_LIMITS) as asking:
            request = asking.get("/models", cast_to=object)
            found = await asyncio.wait_for(request, min(LIST_LIMITS.timeout, endpoint.limits.timeout))
    except (openai.APIError, asyncio.TimeoutError, ValueError, RecursionError) as error:
        why, status = endpoint.cause(error, LIST_LIMITS), getattr(error, "status_code", None)
        if status in NOT_LISTED:
            say(f"note: {why}: it does not list its models, and so does not say which {endpoint.name} is")
            return endpoint
        hint = "" if status in HINTS else ": is the server up, and the address right? It mostly ends in /v1"
        raise UsageError(f"--model: {why}{hint}") from None
    listed = found.get("data") if isinstance(found, dict) else found
    if not isinstance(listed, list):
        raise UsageError(
            f"--model: {shown(endpoint.url)} has no list of models: {excerpt(endpoint.without_key(str(found)))}: is the "
            "address right? It mostly ends in /v1"
        )
    return with_card(endpoint, [card for card in listed if isinstance(card, dict)], say)


def with_card(endpoint: Endpoint, cards: list[dict], say: Callable[[str], None]) -> Endpoint:
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
        root=excerpt(endpoint.without_key(root)) if isinstance(root, str) and root else "",
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
        raise UsageError(
            f"{', '.join(own)}: the API has no such setting; vLLM's server has, and {shown(endpoint.url)} does not say in its "
            "list of models that it is one; leave it out (--no-add_bos, where the run was trained with it)"
        )
    if form.bos and form.chat_template:
        raise UsageError(
            "--add_bos: the server's chat template decides on the begin token; --no-add_bos asks as it does"
        )
    sent = {name: getattr(protocol, name) for name in ("temperature", "top_p")}
    left_out = {name: value for name, value in sent.items() if name in endpoint.omitted}
    if meant := [f"--{name} {value:g}" for name, value in left_out.items() if value != 1 or endpoint.is_vllm]:
        raise UsageError(
            f"--omit_fields: what is left out is 1 in the API, and the model's own default in vLLM; the protocol has "
            f"{', '.join(meant)}"
        )
    room = endpoint.max_model_len
    if room is not None and protocol.max_new_tokens >= room:
        raise UsageError(
            f"--max_new_tokens {protocol.max_new_tokens}: {endpoint.name} on this server reads {room} tokens, prompt and "
            "response together; start the server with a longer --max-model-len, or ask for fewer"
        )


def described(endpoint: Endpoint, form: PromptForm) -> str:
    how = "chat completions, in the server's chat template" if form.chat_template else "completions"
    return f"asked by {how}, {endpoint.limits.concurrency} requests at once; lengths of prompts are not checked"
