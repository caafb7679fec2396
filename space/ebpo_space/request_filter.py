"""An allowlist of requests: the few routes that the pages use. Gradio has some fifty: uploads, files, proxies,
streams, whatever its next version adds. Pages read runs and send a few values, so everything else
is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Container

from starlette.responses import PlainTextResponse

READ = re.compile(
    r"/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)?|/(assets|static|space)/.+"
    r"|/gradio_api/(app_id|startup-events|heartbeat/[\w-]{1,64})",
    re.ASCII,
)
CALL = re.compile(r"/gradio_api/run/predict")
HOST = re.compile(r"(?:\[([\da-f:.]+)\]|([\w.-]+))(?::\d{1,5})?", re.ASCII)
MAX_BODY_BYTES = 2**18  # of what a page sends: values of controls, names of runs
LOCAL = "This app answers on this machine alone: open it as 127.0.0.1, or start it with --host."


class Refused(Exception):
    """A request that the pages do not make: HTTP status and a line for whoever made it."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Gate:
    """ASGI middleware: READ and CALL go through to Gradio, and nothing else.

    A call's body is read here completely: Gradio looks in it for descriptions of files ({"path": …, "meta": …})
    whatever the component, and downloads to its disk what an address there names.

    hosts: names of this server; None: any. Another site's name may point here (DNS rebinding), and its pages then read
        what they ask for.
    """

    def __init__(self, app, hosts: Container[str] | None = None):
        self.app, self.hosts = app, hosts

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        try:
            if self.hosts is not None and host_of(scope) not in self.hosts:
                raise Refused(403, LOCAL)
            receive = await admit(scope, receive)
        except Refused as error:
            return await PlainTextResponse(str(error), error.status)(scope, receive, send)
        await self.app(scope, receive, send)


def host_of(scope: dict) -> str:
    """Return the name that a request was sent to, without its port; "" where it says none, or several."""
    hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
    found = HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    return (found[1] or found[2]) if found else ""


async def admit(scope, receive):
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
    body = await _whole(receive)
    check(body)
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay():
        return next(messages, None) or await receive()

    return replay


async def _whole(receive) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            raise Refused(413, f"The request is larger than {MAX_BODY_BYTES >> 10} KiB.")
    return bytes(body)


def check(body: bytes) -> None:
    """Check the body of a call.

    Raises:
        Refused: it is not JSON, or describes a file.
    """
    try:
        json.loads(body, object_hook=_no_file)
    except (ValueError, RecursionError):
        raise Refused(400, "This is not JSON that the app reads.") from None


def _no_file(found: dict) -> dict:
    if "path" in found and "meta" in found:
        raise Refused(403, "This app takes no files.")
    return found
