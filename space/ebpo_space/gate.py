"""An allowlist of requests: the few routes that the pages use. Gradio has some fifty: uploads, files, proxies,
streams, whatever its next version adds. Pages read runs and send a few values, so everything else
is refused, and what is admitted is limited (limits.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import Container

from starlette.responses import JSONResponse, PlainTextResponse

from .limits import RATE, STREAMS, Allowance, Busy, Places, visitor_of

READ = re.compile(
    r"/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)?|/(assets|static|space)/.+"
    r"|/gradio_api/(app_id|startup-events|heartbeat/[\w-]{1,64})",
    re.ASCII,
)
CALL = re.compile(r"/gradio_api/run/predict")
STREAM = re.compile(r"/gradio_api/heartbeat/.*", re.DOTALL)
HOST = re.compile(r"(?:\[([\da-f:.]+)\]|([\w.-]+))(?::\d{1,5})?", re.ASCII)
FILE = 1 / 16  # of a call: what a file, or a refusal, costs
LONGEST = 2**18  # bytes of what a page sends: values of controls, names of runs
SECONDS = 30.0  # to send it


class Refused(Exception):
    """A request that the pages do not make: HTTP status and a line for whoever made it."""

    def __init__(self, status: int, said: str):
        super().__init__(said)
        self.status = status


class Gate:
    """ASGI middleware: READ and CALL go through to Gradio, and nothing else; each visitor's within their share.

    A call's body is read here, whole: Gradio looks in it for descriptions of files ({"path": …, "meta": …}) whatever the
    component, and downloads to its disk what an address there names.

    worked_on: addresses of READ whose answers take work.
    hosts: names of this server; None: any. Another site's name may point here (DNS rebinding), and its pages then read
        what they ask for.
    """

    def __init__(self, app, worked_on: Container[str] = (), rate: float = RATE, hosts: Container[str] | None = None):
        self.app, self.worked_on, self.hosts = app, worked_on, hosts
        self.allowance, self.places = Allowance(rate), Places()
        self.streams: Counter[str] = Counter()  # open heartbeats of each visitor

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        try:
            await self._within_limits(scope, receive, send)
        except Refused as error:
            await PlainTextResponse(str(error), error.status)(scope, receive, send)
        except Busy as error:  # "error" is where Gradio's page looks for what to say
            said = JSONResponse({"error": str(error)}, 429, {"retry-after": str(error.seconds)})
            await said(scope, receive, send)

    async def _within_limits(self, scope, receive, send):
        if self.hosts is not None and host_of(scope) not in self.hosts:
            raise Refused(403, "This app answers on this machine alone: open it as 127.0.0.1, or start it with --host.")
        visitor = visitor_of(scope)
        work = scope["method"] == "POST" or scope["path"] in self.worked_on
        self.allowance.spend(visitor, 1 if work else FILE)
        receive = await admitted(scope, receive)
        if work:
            async with self.places.one(visitor):
                await self.app(scope, receive, send)
        elif STREAM.fullmatch(scope["path"]):
            with self._streaming(visitor):
                await self.app(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    @contextlib.contextmanager
    def _streaming(self, visitor: str):
        if self.streams[visitor] >= STREAMS:
            raise Busy(60)
        self.streams[visitor] += 1
        try:
            yield
        finally:
            self.streams -= Counter([visitor])  # leaves no entry with 0


def host_of(scope: dict) -> str:
    """The name that a request was sent to, without its port; "" where it says none, or several."""
    said = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
    found = HOST.fullmatch(said[0]) if len(said) == 1 else None
    return (found[1] or found[2]) if found else ""


async def admitted(scope, receive):
    """`receive` for the app, once the request is admitted; the body of a call is read and checked here.

    Raises:
        Refused: the pages do not make such a request.
    """
    if scope["method"] in ("GET", "HEAD") and READ.fullmatch(scope["path"]):
        return receive
    if scope["method"] != "POST" or not CALL.fullmatch(scope["path"]):
        raise Refused(403, "This app does not offer that.")
    kind = dict(scope["headers"]).get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Refused(415, "This app takes JSON only.")
    try:
        body = await asyncio.wait_for(_whole(receive), SECONDS)
    except asyncio.TimeoutError:
        raise Refused(408, f"The request was not complete after {SECONDS:.0f} seconds.") from None
    check(body)
    return _again(body, receive)


async def _whole(receive) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > LONGEST:
            raise Refused(413, f"The request is larger than {LONGEST >> 10} KiB.")
    return bytes(body)


def check(body: bytes) -> None:
    """Check the body of a call.

    Raises:
        Refused: it is not JSON, or describes a file.
    """
    try:
        json.loads(body, object_hook=_no_file)
    except (ValueError, RecursionError):
        raise Refused(400, "This is no JSON that the app reads.") from None


def _no_file(found: dict) -> dict:
    if "path" in found and "meta" in found:
        raise Refused(403, "This app takes no files.")
    return found


def _again(body: bytes, receive):
    """`receive` that replays the body that was read, then passes on what comes after it."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replayed():
        return next(messages, None) or await receive()

    return replayed
