"""Requests to an OpenAI-compatible server: so many at once, so many a minute, each within a time, tried again where that
may help, and given up where nothing answers. Nothing that a server writes is trusted: its answers are bounded in size,
its redirects are not followed, its words reach people in one line, without secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import math
import random
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from openrlhf_ebpo.generation.engines import GenerationError
from openrlhf_ebpo.redact import REDACTED, Secret
from openrlhf_ebpo.rewards.servers import excerpt, shown

CONNECT_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between two tries of a request
TRIES = 8  # of a request that alone fails; a time-out counts as four
SILENCE = 60.0  # seconds without an answer after which that is said
LONGEST_ERROR = 64 << 10  # bytes of an answer that is an error
REAL_KEY = 8  # characters: shorter ones are placeholders such as EMPTY, and words of a language
ENDS = {401: "is the key for this server?", 402: "is the account's credit used up?"}
ENDS |= dict.fromkeys((404, 405, 501), "has the server a model of that name, and does the address end in /v1?")
RATE_LIMIT = 429
AGAIN = {408, 425, RATE_LIMIT}  # and every 5xx


class Refused(Exception):
    """An answer to a request that would be the same another time."""


class GaveUp(Refused):
    """Trouble of this request that has not passed."""


class Trouble(Exception):
    """What may pass. cost: how many of a request's tries it uses up; wait: seconds that the server asks for; answered: the
    server does answer, so that the tries count even where no other request is answered."""

    def __init__(self, message: str, cost: int = 1, wait: float | None = None, answered: bool = False):
        super().__init__(message)
        self.cost, self.wait, self.answered = cost, wait, answered


class BadStatus(Exception):
    """An answer that is an error. wait: seconds that the server asks for."""

    def __init__(self, message: str, status: int, wait: float | None):
        super().__init__(message)
        self.status, self.wait = status, wait


@dataclass(frozen=True)
class Limits:
    """concurrency: requests at once; per_minute: None for any number; timeout: seconds of a request, from connecting to
    the last byte; give_up_after: seconds of trouble without any answer that end the command."""

    concurrency: int = 32
    per_minute: float | None = None
    timeout: float = 1800.0
    give_up_after: float = 600.0


class Pace:
    """When the next request may go: so many a minute, and none before the time that the server has asked for."""

    def __init__(self, per_minute: float | None):
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._one_by_one = asyncio.Lock()

    async def turn(self) -> None:
        async with self._one_by_one:
            while (wait := self._next - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            self._next = time.monotonic() + self._gap

    def hold(self, seconds: float) -> None:
        self._next = max(self._next, time.monotonic() + seconds)


class Client:
    """Requests to one server. say: where its silence is told; within `client`."""

    def __init__(self, url: str, key: Secret | None, limits: Limits, session: aiohttp.ClientSession, say=print):
        self.url, self._key, self._limits, self._session, self._say = url, key, limits, session, say
        self._room = asyncio.Semaphore(limits.concurrency)
        self._pace = Pace(limits.per_minute)
        self._proxy = proxy_of(url)
        self._answered = time.monotonic()  # last answer that was none of trouble
        self._open, self._on_first_try = 0, 0
        self._last = ""

    async def get(self, path: str, longest: int) -> dict | list:
        """The JSON object or array that the server answers. Errors that may pass are tried again for --give_up_after.

        Raises:
            BadStatus, Trouble.
        """
        began, failures = time.monotonic(), 0
        while True:
            try:
                return await self._exchange("GET", path, None, longest, (dict, list))
            except BadStatus as error:
                if not may_pass(error.status):
                    raise
                failures += 1
                limit, asked = self._limits.give_up_after, error.wait or 0.0
                left = limit - (time.monotonic() - began)
                if left <= asked:
                    tried = (
                        f"the server asks to wait {asked:.0f} s, longer than {limit:g} s"
                        if asked > limit
                        else f"tried for {limit:g} s"
                    )
                    raise BadStatus(f"{error}; {tried}", error.status, error.wait) from None
                if failures == 1:
                    self._say(f"note: {error}: tried again, for up to {limit:g} s")
                await asyncio.sleep(max(asked, min(left, pause_after(failures))))

    async def post(self, path: str, body: dict, longest: int, read: Callable[[dict], Any] = dict) -> Any:
        """What `read` makes of the JSON object that the server answers, of at most `longest` bytes; read raises Trouble where
        it is not what was asked for.

        Raises:
            Refused: it answers, and not with that; this request need not be tried again.
            GenerationError: it answers nobody, or will not answer this command.
        """
        async with self._room:
            self._open += 1
            try:
                return await self._tries(path, body, longest, read)
            finally:
                self._open -= 1

    async def _tries(self, path: str, body: dict, longest: int, read: Callable[[dict], Any]) -> Any:
        failures, spent, since = 0, 0, math.inf
        while True:
            await self._pace.turn()
            self._on_first_try += not failures
            try:
                found = read(self._without_error(await self._exchange("POST", path, body, longest)))
            except (Trouble, BadStatus) as error:
                trouble = self._judged(error)
            else:
                self._answered = time.monotonic()
                return found
            finally:
                self._on_first_try -= not failures
            failures, spent, since = failures + 1, spent + trouble.cost, min(since, time.monotonic())
            self._last = str(trouble)
            self._check_hope(trouble, spent, since)
            self._pace.hold(trouble.wait or 0.0)
            await asyncio.sleep(pause_after(failures))

    def _judged(self, error: Trouble | BadStatus) -> Trouble:
        """What may pass; everything else is raised."""
        if isinstance(error, Trouble):
            return error
        if may_pass(error.status):
            return Trouble(str(error), int(error.status != RATE_LIMIT), error.wait)
        if error.status in ENDS:
            raise GenerationError(f"{error}: {ENDS[error.status]}") from None
        if error.status < 400:
            raise GenerationError(f"{error}") from None
        self._answered = time.monotonic()
        raise Refused(str(error)) from None

    def _check_hope(self, trouble: Trouble, spent: int, since: float) -> None:
        seconds, silent = (time.monotonic() - start for start in (since, max(since, self._answered)))
        if (trouble.wait or 0.0) > self._limits.give_up_after:
            raise GenerationError(
                f"{trouble}: the server asks to wait {trouble.wait:.0f} s, longer than --give_up_after "
                f"{self._limits.give_up_after:g}"
            )
        if spent >= TRIES and (self._answered > since or trouble.answered):  # it is this request, not the server
            raise GaveUp(f"{trouble}; tried for {seconds:.0f} s")
        if silent >= self._limits.give_up_after and not self._on_first_try:
            raise GenerationError(
                f"no answer from {shown(self.url)} for {silent:.0f} s (--give_up_after); the last: {trouble}"
            )

    def _without_error(self, found: dict) -> dict:
        """The answer, unless it is an error that comes with HTTP 200, as some gateways send it."""
        error = found.get("error")
        if not error or found.get("choices"):
            return found
        code = error.get("code") if isinstance(error, dict) else None
        message = f"{shown(self.url)} answered HTTP 200 with an error: {self.clean(message_of(error))}"
        if isinstance(code, int | str) and re.fullmatch(r"[45]\d\d", str(code)):
            raise BadStatus(message, int(code), None)
        raise Trouble(message, answered=True)

    async def _exchange(
        self, method: str, path: str, body: dict | None, longest: int, kinds: type | tuple[type, ...] = dict
    ) -> Any:
        """One request and its answer."""
        try:
            async with self._session.request(
                method, f"{self.url}/{path}", json=body, proxy=self._proxy, allow_redirects=False
            ) as response:
                bad = response.status >= 300
                text = await self._read(response, LONGEST_ERROR if bad else longest, cut=bad)
                if bad:
                    raise BadStatus(self._bad_status(response, text), response.status, retry_after(response.headers))
        except asyncio.TimeoutError:
            raise Trouble(
                f"{shown(self.url)} took longer than {self._limits.timeout:g} s (--request_timeout)", TRIES // 2
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Trouble(f"{shown(self.url)}: {self.clean(str(error) or type(error).__name__)}") from None
        return self._parsed(text, kinds)

    async def _read(self, response: aiohttp.ClientResponse, longest: int, cut: bool) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_chunked(1 << 16):
            body += chunk
            if len(body) > longest and cut:
                break
            if len(body) > longest:
                raise Trouble(f"{shown(self.url)} answered with more than {longest:,} bytes", TRIES // 2)
        return bytes(body[:longest])

    def _parsed(self, body: bytes, kinds: type | tuple[type, ...]) -> Any:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, kinds):
            raise Trouble(
                f"{shown(self.url)} answered with what is no JSON object: {self.clean(body.decode(errors='replace'))}"
            )
        return found

    def _bad_status(self, response: aiohttp.ClientResponse, body: bytes) -> str:
        there = response.headers.get("Location") if response.status < 400 else None
        to = (
            f", a redirect to {self.clean(there)}, which is not followed; give that address if it is yours"
            if there
            else ""
        )
        return f"{shown(self.url)} answered HTTP {response.status}{to}: {self.clean(said(body))}"

    def clean(self, text: str) -> str:
        """What the server wrote, for people: a line of it, without the key and other secrets."""
        return excerpt(without(self._key, text))

    async def watch(self) -> None:
        """Say it where nothing is answered; until it is cancelled."""
        told = 0
        while True:
            await asyncio.sleep(min(SILENCE, 5.0))
            minutes = (time.monotonic() - self._answered) // SILENCE
            if minutes > told and self._open:
                why = f"; the last trouble: {self._last}" if self._last else ""
                self._say(f"no answer for {minutes * SILENCE:.0f} s: {self._open} requests wait{why}")
            told = minutes


@contextlib.asynccontextmanager
async def client(
    url: str, key: Secret | None, limits: Limits, say: Callable[[str], None] = print
) -> AsyncIterator[Client]:
    """A client whose connections are closed afterwards."""
    headers = {"Accept-Encoding": "identity"}  # nothing to unpack, so nothing that grows
    if key:
        headers["Authorization"] = f"Bearer {key}"
    session = aiohttp.ClientSession(
        headers=headers,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        # servers close what is idle, vLLM's after 5 s: a request that goes then is lost
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0),
        timeout=aiohttp.ClientTimeout(total=limits.timeout, sock_connect=CONNECT_SECONDS),
    )
    async with session:
        found = Client(url, key, limits, session, say)
        watch = asyncio.create_task(found.watch())
        try:
            yield found
        finally:
            watch.cancel()


def may_pass(status: int) -> bool:
    """Whether an error of this status is worth another try."""
    return status in AGAIN or (status >= 500 and status not in ENDS)


def pause_after(failures: int) -> float:
    """Seconds, growing, and not the same for all requests that failed together."""
    return random.uniform(0.5, 1.0) * min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 20))


def retry_after(headers) -> float | None:
    """Seconds that a Retry-After asks for, as a number or a date; None where it cannot be read."""
    value = headers.get("Retry-After", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (email.utils.parsedate_to_datetime(value) - datetime.now(timezone.utc)).total_seconds()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def said(body: bytes) -> str:
    """The message of an error: that of the API where it is one, else the text."""
    text = body.decode(errors="replace")
    try:
        return message_of(json.loads(text)["error"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return text


def message_of(error) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)


def without(key: Secret | None, text: str) -> str:
    return text.replace(str.__str__(key), REDACTED) if key and len(key) >= REAL_KEY else text


def is_local(host: str) -> bool:
    """Whether a request to this host stays on this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for this address (HTTPS_PROXY, NO_PROXY …); none for this machine itself."""
    parts = urlsplit(url)
    if is_local(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc):
        return None
    return urllib.request.getproxies().get(parts.scheme)
