"""Reward servers (http addresses), asked with one response a request as by OpenRLHF, within one time limit for all tries."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from urllib.parse import urlsplit

import aiohttp

from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.rewards.sources import MIN_FAILED, NoReplyError, RewardSource

CONNECT_SECONDS = 10.0  # a machine that is off: the next server is asked
MAX_CONCURRENT_REQUESTS = 256  # each is a connection
MAX_BODY_BYTES = 1 << 20
MAX_PAUSE_SECONDS = 15.0  # between two tries
MAX_EXCERPT_CHARS = 200
RETRIED = {408, 425, 429}  # and every 5xx


class Refused(NoReplyError):
    """An answer that another try would not change."""


class RewardServers(RewardSource):
    """The reward servers of one rollout actor, asked in turn."""

    def __init__(self, addresses: Iterator[str], seconds: float):
        super().__init__(MAX_CONCURRENT_REQUESTS, MIN_FAILED, seconds)
        self._addresses = addresses

    def _describe(self, seconds: float) -> str:
        return f"no reward server has given a reward for {seconds:.0f} s, in {self._failed} requests"

    async def _reply(self, queries: list, prompts: list, labels: list) -> dict:
        body, failed = {"query": queries, "prompts": prompts, "labels": labels}, []
        try:
            return await asyncio.wait_for(self._try(body, failed), self._seconds)
        except asyncio.TimeoutError:
            last = f", in {len(failed)} tries; the last: {failed[-1]}" if failed else ""
            raise NoReplyError(
                f"the reward server took longer than {self._seconds:g} s (--reward.timeout){last}"
            ) from None

    async def _try(self, body: dict, failed: list[str]) -> dict:
        """Ask one server after another, with growing random pauses; add the causes to `failed`."""
        while True:
            try:
                return await post(next(self._addresses), body)
            except Refused:
                raise
            except NoReplyError as error:
                failed.append(str(error))
            await asyncio.sleep(random.uniform(0, min(MAX_PAUSE_SECONDS, 2.0 ** len(failed) / 2)))


async def post(address: str, body: dict) -> dict:
    """Return the JSON that a server answers.

    Raises:
        Refused: another try would not change it. NoReplyError: it may.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)  # RewardServers has a limit for all tries
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(address, json=body) as response:
            text = await _read(response, address)
    except (aiohttp.InvalidURL, TypeError, ValueError) as error:  # the address, or a label that JSON cannot hold
        raise Refused(f"{shown(address)} cannot be asked: {excerpt(str(error))}") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NoReplyError(f"{shown(address)}: {excerpt(str(error) or type(error).__name__)}") from None
    if response.status >= 300:
        error = NoReplyError if response.status in RETRIED or response.status >= 500 else Refused
        raise error(f"{shown(address)} answered HTTP {response.status}: {excerpt(text)}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise NoReplyError(f"{shown(address)} answered with what is not JSON: {excerpt(text)}") from None


async def _read(response: aiohttp.ClientResponse, address: str) -> str:
    body = b""
    async for chunk in response.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise Refused(f"{shown(address)} answered with more than {MAX_BODY_BYTES} bytes; a reward is a few numbers")
    return body.decode(errors="replace")


def shown(address: str) -> str:
    """Return scheme, host and path, without name, password and query."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def excerpt(text: str) -> str:
    """Return the beginning of a foreign text in one line, without secrets."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_EXCERPT_CHARS]).split())
    return redacted_text(line)[:MAX_EXCERPT_CHARS] or "(nothing)"
