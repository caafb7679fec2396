"""The one HTML document that the server sends: Gradio's, with this app's style sheets and scripts in its head. There
they are found at once, and the scripts have run, in this order, before Gradio's own make the first component."""

from __future__ import annotations

from pathlib import Path

from .pages import PAGES
from .text import HTML, attribute, html, join

STATIC = Path(__file__).parent / "static"
PLOTLY = "vendor/plotly/plotly-cartesian.min.js.gz"  # a third of the whole: lines, bars; panels.js loads it
# what all others build on; last come the pages' own
FIRST = ("style", "space", "panels", "boards", "tables", "frame")


def head(version: str) -> HTML:
    """Links relative to the page, so that they work below any root path."""
    links = [html('<link rel="stylesheet" href="{}">', _link(name, version)) for name in in_order(".css")]
    scripts = [html('<script src="{}"></script>', _link(name, version)) for name in in_order(".js")]
    return join([*links, html('<meta name="plotly" content="{}">', _link(PLOTLY, version)), *scripts])


def in_order(ending: str) -> list[str]:
    """Files of static/ itself; what lies in folders there is loaded by whoever needs it."""
    there = sorted(path.stem for path in STATIC.glob(f"*{ending}"))
    others = [name for name in there if name not in FIRST and name not in PAGES]
    return [f"{name}{ending}" for name in (*FIRST, *others, *PAGES) if name in there]


def _link(name: str, version: str) -> HTML:
    return attribute(f"./space/{name}?{version}-{int((STATIC / name).stat().st_mtime)}")


class Document:
    """ASGI middleware: puts `head` into the page's HTML, and scope["nonce"] on every script that stands in it."""

    def __init__(self, app, head: str):
        self.app, self.head = app, head.encode()

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["path"] not in ("", "/"):
            return await self.app(scope, receive, send)
        start, body = None, bytearray()

        async def held(message):
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            body.extend(message.get("body", b""))
            if not message.get("more_body"):
                whole = complete(bytes(body), self.head, scope["nonce"])
                others = [header for header in start["headers"] if header[0].lower() != b"content-length"]
                length = (b"content-length", str(len(whole)).encode())
                await send({**start, "headers": [*others, length]})
                await send({**message, "body": whole})

        await self.app(scope, receive, held)


def complete(page: bytes, head: bytes, nonce: str) -> bytes:
    """Gradio writes no `<` into the page but in its template: what a run holds cannot end up with the nonce."""
    page = page.replace(b"</head>", head + b"</head>", 1)
    return page.replace(b"<script", f'<script nonce="{nonce}"'.encode())
