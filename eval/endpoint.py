"""A model behind an OpenAI-compatible server, --model openai:URL#NAME: its address, its key, and its entry in the server's
list of models. Requests, retries, time-outs and proxies are those of the `openai` package.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
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
EXAMPLE = f"write {PREFIX}http://localhost:8000/v1#NAME"
VLLM_ONLY = ("top_k", "min_p", "template_kwargs")  # settings of a protocol that the API does not have
NOT_LISTED = (403, 404, 405, 501)  # the server does not show its list
MIN_KEY_CHARS = 8  # shorter ones are placeholders such as EMPTY, and words of a language
LIST_SECONDS, LIST_RETRIES = 60.0, 2
HINTS = {
    401: "is the key in --api_key_env for this server?",
    402: "is the account's credit used up?",
    **dict.fromkeys((404, 405), "has the server a model of that name, and does the address end in /v1?"),
    503: "is the server still starting, or overloaded?",
}


@dataclass(frozen=True)
class Endpoint:
    """
    url: of the API, such as https://host/v1. name: of the model there.
    concurrency: requests at once. request_timeout: seconds for one response, retries included. retries: of a request, by
        the rules of the `openai` package.
    root, max_model_len: from the server's list. is_vllm: the list is vLLM's, which takes more settings than the API has.
    """

    url: str
    name: str
    key: Secret | None = None
    concurrency: int = 128
    request_timeout: float = 1800.0
    retries: int = 8
    root: str = ""
    max_model_len: int | None = None
    is_vllm: bool = False

    def identity(self) -> dict[str, str]:
        """Return what tells the model apart from others, as far as a server tells: not its weights."""
        place = urlsplit(self.url)
        served = {"root": self.root, "max_model_len": self.max_model_len}
        return {
            "model": f"{PREFIX}{place.netloc}{place.path}#{self.name}",
            "served": ", ".join(f"{name} {value}" for name, value in served.items() if value),
        }

    def client(self):
        """Return the package's client, for `async with`. A server on this machine is asked without a proxy."""
        import openai

        return openai.AsyncOpenAI(
            base_url=self.url,
            api_key=str.__str__(self.key) if self.key else "none",
            timeout=self.request_timeout,
            max_retries=self.retries,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=not is_local(urlsplit(self.url).hostname)),
        )

    def without_key(self, text: str) -> str:
        return text.replace(str.__str__(self.key), REDACTED) if self.key and len(self.key) >= MIN_KEY_CHARS else text

    async def ask(self, request):
        """Await a request of the client, for `request_timeout` at most: the package limits each read, not the answer.

        Raises:
            NoAnswer: in one line, with the server's own words.
        """
        import openai

        try:
            return await asyncio.wait_for(request, self.request_timeout)
        except (openai.APIError, asyncio.TimeoutError, ValueError, RecursionError) as error:
            status = getattr(error, "status_code", None)
            raise NoAnswer(self._cause(error, status), status) from None

    def _cause(self, error: Exception, status: int | None) -> str:
        place = shown(self.url)
        if status:
            body = error.body
            words = excerpt(
                self.without_key(str((body.get("message", body) if isinstance(body, dict) else body) or ""))
            )
            return f"{place} answered HTTP {status}: {words}" + (f": {HINTS[status]}" if status in HINTS else "")
        if isinstance(error, asyncio.TimeoutError):
            return f"{place} took longer than {self.request_timeout:g} s (--request_timeout)"
        if isinstance(error, ValueError | RecursionError):
            return f"{place} answered with something that is not JSON"
        found = error.__cause__ or error
        return f"{place}: {excerpt(self.without_key(str(found) or type(found).__name__))}"


class NoAnswer(Exception):
    """A request has failed, retries included. status: of HTTP; None: the server did not answer, or not in JSON."""

    def __init__(self, why: str, status: int | None = None):
        super().__init__(why)
        self.status = status


def is_endpoint(model: str | None) -> bool:
    return bool(model) and model.startswith(PREFIX)


def is_local(host: str | None) -> bool:
    """Return whether a request to this host stays on this machine."""
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost" or str(host).endswith(".localhost")


FLAGS = ("concurrency", "request_timeout", "retries")  # fields of Endpoint


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(f"server: of --model {PREFIX}URL#NAME").add_argument
    add("--api_key_env", metavar="NAME", help=f"environment variable that holds the key (default: {KEY}, if it is set)")
    add("--concurrency", type=int, metavar="N", help="requests at once (%(default)s)")
    add("--request_timeout", type=float, metavar="SECONDS", help="for one response, retries included (%(default)g)")
    add("--retries", type=int, metavar="N", help="of a request when the server is busy or down (%(default)s)")
    parser.set_defaults(**{name: getattr(Endpoint, name) for name in FLAGS})


def flag_problems(args: argparse.Namespace) -> list[str]:
    """Return what is wrong with the flags about where the model runs."""

    def given(defaults: dict) -> list[str]:
        return [name for name, default in defaults.items() if getattr(args, name) != default]

    if not is_endpoint(args.model):
        flags = given({"api_key_env": None, **{name: getattr(Endpoint, name) for name in FLAGS}})
        return [f"--{name} goes with --model {PREFIX}URL#NAME" for name in flags]
    local = given({"max_model_len": None, **{name: getattr(EngineSettings, name) for name in engines.FLAGS}})
    problems = [f"--{name}: the server at --model {PREFIX}… has its own" for name in local]
    least = {"concurrency": 1, "request_timeout": 1e-3, "retries": 0}
    problems += [
        f"--{name} {getattr(args, name):g} makes no sense"
        for name, low in least.items()
        if not low <= getattr(args, name) < 1e9
    ]
    if args.api_key_env is not None and not re.fullmatch(r"[A-Za-z_]\w*", args.api_key_env, re.ASCII):
        problems.append("--api_key_env takes the name of a variable, not the key")
    return problems


def connect(args: argparse.Namespace, say: Callable[[str], None] = print) -> Endpoint:
    """Return the endpoint that --model names, with what the server's list of models says of it.

    Raises:
        UsageError: the address or the key cannot be used, or the server does not answer.
    """
    url, name = parsed(args.model)
    flags = {field: getattr(args, field) for field in FLAGS}
    endpoint = Endpoint(url, name, key_of(args.api_key_env, url, say), **flags)
    found = asyncio.run(_listed(endpoint, say))
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
    if "@" in url or "?" in url:
        raise UsageError(
            f"--model {PREFIX}…: no name, password or query belongs in the address; the key: --api_key_env NAME"
        )
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not url.isprintable() or " " in url:
        raise UsageError(f"--model {excerpt(model)}: not the address of a server: {EXAMPLE}")
    if not name.strip() or not name.isprintable():
        raise UsageError(f"--model {excerpt(model)}: which of the server's models? {EXAMPLE}")
    return url.rstrip("/"), name


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
    soon = replace(endpoint, request_timeout=min(LIST_SECONDS, endpoint.request_timeout), retries=LIST_RETRIES)
    try:
        async with soon.client() as client:
            found = await soon.ask(client.get("/models", cast_to=object))
    except NoAnswer as error:
        if error.status in NOT_LISTED:
            say(f"note: {error}: it does not list its models, and so does not say which {endpoint.name} is")
            return endpoint
        raise UsageError(f"--model: {error}: is the server up, and the address right? It mostly ends in /v1") from None
    listed = found.get("data") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        words = excerpt(endpoint.without_key(str(found)))
        raise UsageError(
            f"--model: {shown(endpoint.url)} has no list of models: {words}: is the address right? It mostly ends in /v1"
        )
    cards = {str(card.get("id")): card for card in listed if isinstance(card, dict)}
    if endpoint.name not in cards:
        names = excerpt(endpoint.without_key(", ".join(cards)))
        say(f"warning: {shown(endpoint.url)} does not list {endpoint.name!r}; its models: {names}")
        return endpoint
    card = cards[endpoint.name]
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
    room = endpoint.max_model_len
    if room is not None and protocol.max_new_tokens >= room:
        raise UsageError(
            f"--max_new_tokens {protocol.max_new_tokens}: {endpoint.name} on this server reads {room} tokens, prompt and "
            "response together; start the server with a longer --max-model-len, or ask for fewer"
        )


def described(endpoint: Endpoint, form: PromptForm) -> str:
    how = "chat completions, in the server's chat template" if form.chat_template else "completions"
    return f"asked by {how}, {endpoint.concurrency} requests at once; lengths of prompts are not checked"
