"""An allowlist of requests: the few routes that the pages use. Gradio has some fifty: uploads, files, proxies,
streams, whatever its next version adds. Pages read runs and send a few values, so everything else gets one refusal."""

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
CALL = "/gradio_api/run/predict"
HOST = re.compile(r"(?:\[([\da-f:.]+)\]|([\w.-]+))(?::\d{1,5})?", re.ASCII)
MAX_BODY_BYTES = 2**18  # of what a page sends: values of controls, names of runs
REFUSED = "This app does not offer that. Without --host it answers as 127.0.0.1 alone."


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
        hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        named = HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        known = self.hosts is None or (named and (named[1] or named[2]) in self.hosts)
        admitted = await admit(scope, receive) if known else None
        if admitted is None:
            return await PlainTextResponse(REFUSED, 403)(scope, receive, send)
        await self.app(scope, admitted, send)


async def admit(scope, receive):
    """Return `receive` for the app, None for a request that the pages do not make; the body of a call is read and
    checked here."""
    if scope["method"] in ("GET", "HEAD") and READ.fullmatch(scope["path"]):
        return receive
    kind = dict(scope["headers"]).get(b"content-type", b"").partition(b";")[0].strip().lower()
    if scope["method"] != "POST" or scope["path"] != CALL or kind != b"application/json":
        return None
    body, more = bytearray(), True
    while more and len(body) <= MAX_BODY_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if len(body) > MAX_BODY_BYTES:
        return None
    files: list[bool] = []
    try:
        json.loads(bytes(body), object_hook=lambda found: files.append({"path", "meta"} <= found.keys()))
    except (ValueError, RecursionError):
        return None
    if any(files):
        return None
    messages = iter([{"type": "http.request", "body": bytes(body), "more_body": False}])

    async def replay():
        return next(messages, None) or await receive()

    return replay
