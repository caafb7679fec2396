"""What the Gradio server sends besides Gradio's own: our static files, Plotly, and security headers.
What it accepts is in gate.py."""

from __future__ import annotations

from pathlib import Path

import plotly
from starlette.middleware import Middleware
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from . import downloads, note_route
from .document import STATIC, Document, head
from .gate import Gate
from .workspace import Workspace

PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
# Text is escaped before it gets here; if an escape were forgotten, a page could not load or send anything elsewhere.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",  # Gradio and Plotly compile templates
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data:",  # Plotly turns its own SVG into a PNG
        "frame-src 'none'",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'self' https://huggingface.co https://*.hf.space",
    )
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


class SafeHeaders:
    """ASGI middleware: HEADERS on every response."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def with_headers(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)


async def _plotly(request):
    return FileResponse(PLOTLY, media_type="text/javascript", headers={"cache-control": "public, max-age=31536000"})


def routes(workspace: Workspace) -> list:
    """Before Gradio's own; every one below /space/, and read-only but for notes, see gate.py."""
    return [
        Route("/space/plotly.js", _plotly),
        downloads.route(workspace),
        note_route.route(workspace),
        Mount("/space", StaticFiles(directory=STATIC)),
    ]


def app_kwargs(version: str, workspace: Workspace) -> dict:
    """For `launch`: the routes, the page's head, the headers, and what is refused."""
    inner = [Middleware(SafeHeaders), Middleware(Gate), Middleware(Document, head=head(version))]
    return {"routes": routes(workspace), "middleware": inner, "docs_url": None, "redoc_url": None}
