"""Reward servers (http addresses), asked with one response a request as by OpenRLHF, within one time limit for all
tries."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.rewards.processes.sources import MIN_FAILED, Failures, NoReplyError, RewardSource
from openrlhf_ebpo.rewards.reward_settings import TIMEOUT_FLAG

CONNECT_SECONDS = 10.0  # a machine that is off: the next server is asked
MAX_CONCURRENT_REQUESTS = 256  # each is a connection
MAX_PAUSE_SECONDS = 15.0  # between two rounds
REST_TIMES = 10  # a failed server rejoins the rotation after so many times the timeout
MAX_EXCERPT_CHARS = 200
GIVER = "the reward server"  # in messages
RETRIED = {408, 425, 429}  # and every 5xx


class Refused(NoReplyError):
    """An answer that another try would not change."""


@dataclass
class Server:
    """A reward server, and its failures in a row."""

    address: str
    failures: Failures = field(default_factory=Failures)

    async def ask(self, body: dict, seconds: float) -> dict:
        """Raises NoReplyError, also if nothing has come after so many seconds."""
        began = time.monotonic()
        try:
            reply = await asyncio.wait_for(post(self.address, body), seconds)
        except asyncio.TimeoutError:
            self.failures.add(began)
            raise NoReplyError(f"{bare_address(self.address)}: no answer in {seconds:.3g} s") from None
        except NoReplyError:
            self.failures.add(began)
            raise
        self.failures = Failures()
        return reply

    def is_down(self, seconds: float) -> bool:
        """Return True if it has given nothing for so long."""
        return self.failures.lasted(MIN_FAILED, seconds)


class RewardServers(RewardSource):
    """The reward servers of one rollout actor, asked in turn. One that is down is asked after the others."""

    def __init__(self, addresses: Sequence[str], seconds: float):
        super().__init__(MAX_CONCURRENT_REQUESTS, MIN_FAILED, seconds)
        self._servers = [Server(address) for address in addresses]
        self._first = itertools.cycle(range(len(self._servers)))

    def _find_failure(self) -> str | None:
        if not all(server.is_down(self._seconds) for server in self._servers):
            return None
        seconds = time.monotonic() - min(server.failures.since for server in self._servers)
        tries = sum(server.failures.count for server in self._servers)
        return f"no reward server has given a reward for {seconds:.0f} s, in {tries} tries"

    async def _reply(self, queries: list, prompts: list, labels: list) -> dict:
        """Ask one server after another, then all again after growing random pauses. Each try gets an equal share of the
        time that is left for this round, so that a server that hangs leaves enough for the next.
        """
        body, failed = {"query": queries, "prompts": prompts, "labels": labels}, []
        first, now, rest = next(self._first), time.monotonic(), REST_TIMES * self._seconds
        in_turn = self._servers[first:] + self._servers[:first]
        servers = sorted(in_turn, key=lambda each: each.is_down(self._seconds) and now - each.failures.last < rest)
        until = now + self._seconds
        while (left := until - time.monotonic()) > 0:
            untried = len(servers) - len(failed) % len(servers)
            try:
                return await servers[-untried].ask(body, left / untried)
            except Refused:
                raise
            except NoReplyError as error:
                failed.append(str(error))
            if untried == 1:
                pause = random.uniform(0, min(MAX_PAUSE_SECONDS, 2.0 ** len(failed) / 2))
                await asyncio.sleep(min(pause, max(until - time.monotonic(), 0)))
        raise NoReplyError(
            f"the reward server took longer than {self._seconds:g} s ({TIMEOUT_FLAG}), in {len(failed)} tries; the "
            f"last: {failed[-1]}"
        )


async def post(address: str, body: dict) -> dict:
    """Return the JSON that a server answers.

    Raises:
        Refused: another try would not change it. NoReplyError: it may.
    """
    import aiohttp  # OpenRLHF and the extra `eval` bring it

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)  # Server.ask limits all of it
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(address, json=body) as response:
            text = await response.text(errors="replace")
    except (aiohttp.InvalidURL, TypeError, ValueError) as error:  # the address, or a label that JSON cannot hold
        raise Refused(f"{bare_address(address)} cannot be asked: {excerpt(str(error))}") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NoReplyError(f"{bare_address(address)}: {excerpt(str(error) or type(error).__name__)}") from None
    if response.status >= 300:
        error = NoReplyError if response.status in RETRIED or response.status >= 500 else Refused
        raise error(f"{bare_address(address)} answered HTTP {response.status}: {excerpt(text)}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise NoReplyError(f"{bare_address(address)} answered with what is not JSON: {excerpt(text)}") from None


def bare_address(address: str) -> str:
    """Return scheme, host and path, without name, password and query."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def excerpt(text: str) -> str:
    """Return the beginning of a foreign text in one line, without secrets."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_EXCERPT_CHARS]).split())
    return redacted_text(line)[:MAX_EXCERPT_CHARS] or "(nothing)"
