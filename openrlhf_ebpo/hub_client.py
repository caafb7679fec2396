"""The client of the Hub, messages for its errors, and the only place where this project repeats a call to the Hub.

Endpoint and token come from the usual places: HF_ENDPOINT, HF_TOKEN, `hf auth login`. A token is never printed.
"""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from openrlhf_ebpo.command import end_with_parent, one_line, positive_number, printable
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.redact import redacted_text

TIMEOUT = "OPENRLHF_EBPO_HUB_TIMEOUT"  # seconds without a byte; the client sets no limit
TIMEOUT_SECONDS = 60.0
PAUSE = "OPENRLHF_EBPO_HUB_PAUSE"  # seconds before the first repetition
FIRST_PAUSE = 5.0
MAX_BACKOFF_SECONDS = 600.0
MAX_RETRY_AFTER_SECONDS = 3600.0  # whatever the Hub asks for
ATTEMPTS = 5
# The limit of an attempt: so many times TIMEOUT, and what its bytes take at this rate. Only the end of the process that
# sends ends a transfer through Xet, which knows no limit.
CALLS_PER_ATTEMPT = 5
MIN_BYTES_PER_SECOND = 50_000.0
HOW_TO_LOG_IN = (
    "set HF_TOKEN, or run `hf auth login`, with a token that may write (https://huggingface.co/settings/tokens)"
)
# Remedies by status; those of PERMANENT fail again without the remedy.
ADVICE = {
    401: f"the Hub does not accept the token, or wants one (or there is no such repo): {HOW_TO_LOG_IN}",
    402: "the Hub wants a paid plan of the owner for this (https://huggingface.co/pricing)",
    403: "the token has no right to do this",
    404: "no such repo or revision, or the token may not see it",
    412: "another commit was pushed meanwhile",
    429: "too many requests",
}
PERMANENT = {400, 401, 402, 403, 413, 422}
NO_ANSWER_WANTED = {"HFValidationError", "LocalTokenNotFoundError", "OfflineModeIsEnabled"}  # refused by the client
MAX_CHARS = 400  # of an answer that is shown
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG, errno.EFBIG}  # never of a connection

T = TypeVar("T")


class HubError(ReportedError):
    """A call to the Hub failed; its message says what to do.

    status: of the Hub's answer, or None. permanent: a retry fails again without the remedy. retry_after:
    seconds that the Hub asks to wait, or None.
    """

    def __init__(
        self, words: str, status: int | None = None, permanent: bool = False, retry_after: float | None = None
    ):
        super().__init__("\n".join(map(printable, redacted_text(words).split("\n"))))
        self.status = status
        self.permanent = permanent
        self.retry_after = retry_after


def hub_api(endpoint: str | None = None, token: str | None = None):
    """Return huggingface_hub's HfApi; its calls fail when no byte comes or goes for TIMEOUT_SECONDS.

    Raises:
        UsageError: the limit is not a number, the proxy cannot be used, or the token cannot be one.
    """
    from huggingface_hub import HfApi, get_token

    if not (token or get_token() or "").isascii():
        raise UsageError(f"the token for the Hub has a character that no token has: {HOW_TO_LOG_IN}")
    positive_number(TIMEOUT, TIMEOUT_SECONDS)  # which refuses what is not a number
    limit_waiting()
    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.addFilter(redact_record)
    return HfApi(endpoint=endpoint, token=token, library_name="openrlhf_ebpo")


@functools.cache
def limit_waiting() -> None:
    """Limit every call of this process to TIMEOUT without a byte: the client sets no limit, and some of its calls turn
    httpx's default off."""
    from huggingface_hub import get_session, set_client_factory
    from huggingface_hub.utils import httpx  # httpx2 in huggingface_hub 2

    try:
        hooks = get_session().event_hooks["request"]
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        words = redacted_text(str(error))
        raise UsageError(f"the proxy of the environment (HTTPS_PROXY, ALL_PROXY) cannot be used: {words}") from error

    def limit(request) -> None:
        seconds, wanted = positive_number(TIMEOUT, TIMEOUT_SECONDS), request.extensions.get("timeout") or {}
        parts = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {part: min(wanted.get(part) or seconds, seconds) for part in parts}

    events = {"request": [*hooks, limit]}
    set_client_factory(lambda: httpx.Client(event_hooks=events, follow_redirects=True, timeout=None))


def retry_after(response) -> float | None:
    """Seconds that the Hub asks to wait, or None."""
    from huggingface_hub.utils import parse_ratelimit_headers

    limit = parse_ratelimit_headers(response.headers)
    if limit and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    seconds = response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdigit() else None


def redact_record(record: logging.LogRecord) -> bool:
    """Clean a record: the client logs upload addresses with their signatures when it retries, and what the Hub warns
    of."""
    record.msg, record.args = printable(redacted_text(record.getMessage())), ()
    return True


@contextmanager
def hub_errors(doing: str) -> Iterator[None]:
    """Turn every error of the client into a HubError. Some of them are untyped: a JSON error for a 503, a RuntimeError
    for a refused upload, a transport error."""
    try:
        yield
    except ReportedError:
        raise
    except Exception as error:
        raise hub_error(error, doing) from error


def hub_error(error: Exception, doing: str) -> HubError:
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    for each in causes:  # of this machine's disk (full, not writable, a missing file), not of a connection
        named = each is error and getattr(each, "filename", None) is not None  # a context may be an older story
        if isinstance(each, OSError) and each.errno and (named or each.errno in FULL):
            return HubError(f"{doing}: this machine, not the Hub, has a problem: {each}", permanent=True)
    response = next((each.response for each in causes if hasattr(getattr(each, "response", None), "status_code")), None)
    if response is None:
        permanent = any(type(cause).__name__ in NO_ANSWER_WANTED for cause in causes)
        texts = "; ".join(dict.fromkeys(f"{type(each).__name__}: {each}" for each in (error, causes[-1])))
        return HubError(f"{doing}: no usable answer ({one_line(texts, MAX_CHARS)})", permanent=permanent)
    status = response.status_code
    said = next(filter(None, (getattr(cause, "server_message", None) for cause in causes)), "")
    if not said and not hasattr(error, "response"):  # the client's own words, as about a card's metadata
        said = str(error)
    advice = ADVICE.get(status, "the Hub has a problem" if status >= 500 else "the Hub refuses this")
    words = f"{doing}: {advice} ({status}{f': {one_line(said, MAX_CHARS)}' if said else ''})"
    return HubError(words, status, status in PERMANENT, retry_after(response))


# Trying again


def retrying(
    action: Callable[[], T],
    attempts: float = ATTEMPTS,
    report: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """The result of `action`, called up to `attempts` times while it raises a HubError that may pass. Pauses are 5, 10,
    20 … 600 seconds, or as long as the Hub asks, an hour at most.

    Raises:
        HubError: the last one, or the first permanent one.
    """
    for failures in itertools.count(1):
        try:
            return action()
        except HubError as error:
            if error.permanent or failures >= attempts:
                raise
            own = positive_number(PAUSE, FIRST_PAUSE) * 2.0 ** min(failures - 1, 20)
            requested = min(error.retry_after or 0.0, MAX_RETRY_AFTER_SECONDS)
            seconds = max(min(own, MAX_BACKOFF_SECONDS), requested)
            report(f"{error}\n  trying again in {seconds:g} s")
            sleep(seconds)
    raise AssertionError("not reached")


# A complete attempt


def run_with_timeout(action: Callable[[], T], doing: str, size: float = 0, least: float = 0) -> T:
    """The result of `action`, which runs in a process of its own that is killed after CALLS_PER_ATTEMPT timeouts and
    what `size` bytes take, but not before `least` seconds. The process ends with this one.

    Raises:
        HubError: it did not end in time, or died; or what `action` raises.
    """
    limit = max(least, CALLS_PER_ATTEMPT * positive_number(TIMEOUT, TIMEOUT_SECONDS) + size / MIN_BYTES_PER_SECOND)
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    # a daemon, or a Ctrl-C between `start` and `try` would wait at the exit for its end
    process = fork.Process(target=_answer, args=(action, sender, os.getpid()), daemon=True)
    process.start()
    sender.close()
    try:
        deadline = time.monotonic() + limit
        # one second at a time: a signal that comes just before the wait does not interrupt it
        while not receiver.poll(min(1.0, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise HubError(f"{doing}: it did not end within {limit:.0f} s, and was ended")
        result, error = receiver.recv()
    except EOFError:
        process.join()
        raise HubError(f"{doing}: its process died ({process.exitcode})") from None
    finally:
        process.kill()
        process.join()
    if error:
        raise error
    return result


def _answer(action: Callable, sender, parent: int) -> None:
    """Send (result, None) or (None, error)."""
    end_with_parent(signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)
    try:
        answer = action(), None
    except (ReportedError, OSError) as error:
        answer = None, error
    sender.send(answer)
