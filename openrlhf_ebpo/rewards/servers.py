"""Reward servers (http addresses): one response a request, as OpenRLHF asks them, with a deadline for the whole of it.

OpenRLHF logs what goes wrong at INFO, asks again five times, each for 180 s, and goes on without a reward. Here
the cause reaches the sample; a server that does not answer for a while ends the run instead of every sample of it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

import aiohttp

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.rewards.returned import RewardError
from openrlhf_ebpo.rewards.under_way import under_way

MAX_CONCURRENT_REQUESTS = 256  # each is a connection
LONGEST_BODY = 1 << 20  # bytes
LONGEST_WAIT = 15.0  # seconds between two tries
FAILED_IN_A_ROW = 16  # and for as long as one reward may take: nobody answers
SHOWN = 200  # characters of an answer
TRY_AGAIN = {408, 425, 429}  # and every 5xx
SAME_REQUEST = {307, 308}  # redirects that a POST may follow
HEADERS = {"Accept-Encoding": "identity"}  # nothing to unpack, so nothing that grows


class RewardServerError(ReportedError, RuntimeError):
    """No reward server answers."""


class Refused(RewardError):
    """An answer that would be the same another time."""


class Servers:
    """The reward servers of one rollout actor.

    Attributes:
        failure: why nobody needs to be asked any more; None while there is hope.
    """

    def __init__(self, addresses: Iterator[str], seconds: float):
        self._addresses, self._seconds = addresses, seconds
        self._room = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        self._in_a_row = 0
        self._since: float | None = None  # when the first of them was asked
        self.failure: str | None = None

    async def ask(self, queries: list, prompts: list, labels: list) -> dict:
        """The answer to one request, in as many tries as the time allows; each asks the next server.

        Raises:
            RewardError: there was none; the last cause.
        """
        body = {"query": queries, "prompts": prompts, "labels": labels}
        async with self._room:
            if self.failure:
                raise RewardError(self.failure)
            began = time.monotonic()
            with under_way.running():
                try:
                    answer = await self._within_limit(body)
                except RewardError as error:
                    self._count_failure(began, str(error))
                    raise
            self._in_a_row = 0
            return answer

    def _count_failure(self, began: float, why: str) -> None:
        self._since = began if not self._in_a_row else min(self._since, began)
        self._in_a_row += 1
        seconds = time.monotonic() - self._since
        if not self.failure and self._in_a_row >= FAILED_IN_A_ROW and seconds >= self._seconds:
            self.failure = f"no reward server has given a reward for {seconds:.0f} s, in {self._in_a_row} requests; the last: {why}"

    async def _within_limit(self, body: dict) -> dict:
        tries: list[str] = []
        try:
            return await asyncio.wait_for(self._tries(body, tries), self._seconds)
        except asyncio.TimeoutError:
            last = f", in {len(tries)} tries; the last: {tries[-1]}" if tries else ""
            raise RewardError(
                f"the reward server took longer than {self._seconds:g} s (--reward.timeout){last}"
            ) from None

    async def _tries(self, body: dict, failed: list[str]) -> dict:
        while True:
            address = next(self._addresses)
            try:
                async with aiohttp.ClientSession(headers=HEADERS, auto_decompress=False, timeout=NO_LIMIT) as session:
                    return await post(session, address, body)
            except Refused:
                raise
            except (
                aiohttp.InvalidURL,
                TypeError,
                ValueError,
            ) as error:  # the address, or a label that JSON cannot hold
                raise Refused(f"{shown(address)} cannot be asked: {excerpt(str(error))}") from None
            except (RewardError, aiohttp.ClientError, OSError) as error:
                failed.append(cause(address, error))
            await asyncio.sleep(random.uniform(0, min(LONGEST_WAIT, 2.0 ** len(failed) / 2)))


NO_LIMIT = aiohttp.ClientTimeout(total=None)  # `Servers` has one, for the whole


async def post(session: aiohttp.ClientSession, address: str, body: dict, redirects: int = 2) -> dict:
    """What a server answers.

    Raises:
        Refused: what would not change. RewardError: what may.
    """
    async with session.post(address, json=body, allow_redirects=False) as response:
        if response.status in SAME_REQUEST and redirects and (there := own_redirect(address, response)):
            return await post(session, there, body, redirects - 1)
        text = await read(response, address)
        if response.status >= 300:
            again = response.status in TRY_AGAIN or response.status >= 500
            raise (RewardError if again else Refused)(bad_status(address, response, text))
    return parsed(text, address)


def own_redirect(address: str, response: aiohttp.ClientResponse) -> str | None:
    """The other path on the same server that it names; what the prompts' senders did not name gets no prompt."""
    there = urljoin(address, response.headers.get("Location", ""))
    return there if urlsplit(there)[:2] == urlsplit(address)[:2] else None


async def read(response: aiohttp.ClientResponse, address: str) -> str:
    body = b""
    async for chunk in response.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > LONGEST_BODY:
            raise Refused(f"{shown(address)} answered with more than {LONGEST_BODY} bytes; a reward is a few numbers")
    return body.decode(errors="replace")


def parsed(text: str, address: str) -> dict:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RewardError(f"{shown(address)} answered with what is not JSON: {excerpt(text)}") from None


def bad_status(address: str, response: aiohttp.ClientResponse, text: str) -> str:
    there = response.headers.get("Location")
    to = f", a redirect to {shown(urljoin(address, there))}; give that address if it is yours" if there else ""
    return f"{shown(address)} answered HTTP {response.status}{to}: {excerpt(text)}"


def cause(address: str, error: Exception) -> str:
    if isinstance(error, RewardError):
        return str(error)
    return f"{shown(address)}: {excerpt(str(error) or type(error).__name__)}"


def shown(address: str) -> str:
    """Scheme, host and path; neither a name, a password nor a query."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def excerpt(text: str) -> str:
    """The beginning of what somebody else wrote, in one line, without secrets."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * SHOWN]).split())
    return redacted_text(line)[:SHOWN] or "(nothing)"
