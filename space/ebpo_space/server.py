"""Our static files, the rest of long texts, and security headers, sent besides Gradio's own. request_filter.py
decides what is accepted."""

from __future__ import annotations

import mimetypes
import os
import re
import secrets
from collections.abc import Container, Mapping

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from . import results
from .document import STATIC, Document, head
from .errors import RunError
from .groups import read_columns
from .metric_panels import MAX_NAME_CHARS, panel_csv
from .parameters import names
from .parquet import rows_of
from .request_filter import Gate
from .runs import AT_ONCE
from .search import position_of
from .text import plain
from .workspace import Workspace

# Text is escaped before it gets here; if an escape were forgotten, a page could neither run it nor load or send
# anything elsewhere. 'unsafe-eval': Gradio's HTML component compiles its template, which is ours, for every value.
# 'unsafe-inline' of styles: Gradio writes style elements, and bars of pages have their width in an attribute.
POLICY = (
    "default-src 'self'",
    "script-src 'self' 'nonce-{nonce}' 'unsafe-eval'",
    "style-src 'self' 'unsafe-inline'",
    "img-src 'self' data: blob:",
    "font-src 'self' data:",
    "connect-src 'self'",
    "worker-src 'self'",
    "frame-src 'none'",
    "object-src 'none'",
    "base-uri 'self'",
    "form-action 'self'",
)
FRAMED_BY = "'self' https://huggingface.co"  # a Space on the Hub stands in a frame of its page
HEADERS = (
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


def policy(nonce: str) -> str:
    framed_by = FRAMED_BY if os.environ.get("SPACE_ID") else "'self'"
    return "; ".join((*POLICY, f"frame-ancestors {framed_by}")).format(nonce=nonce)


HASHED = re.compile(r"/assets/[\w./-]+-[\w-]{8}\.\w+", re.ASCII)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OURS = re.compile(r"/space/[\w./-]+\.(js|js\.gz|css|woff2)", re.ASCII)
VERSION = re.compile(rb"[\w.]+-\d+", re.ASCII)
KEPT = (b"cache-control", b"public, max-age=31536000, immutable")
MAX_CHUNK_CHARS = 64_000  # of one request
TEXT_FIELDS = ("prompt", "response", "question")
PLACE = re.compile(r"(eval/)?[^/]{1,200}/[^/]{1,200}/step-\d{1,9}", re.ASCII)


def is_lasting(scope: dict) -> bool:
    """Test for a file whose address changes with it: Gradio's have a hash in their names, ours the version behind them
    (head)."""
    ours = OURS.fullmatch(scope["path"]) and VERSION.fullmatch(scope["query_string"])
    return bool(ours or HASHED.fullmatch(scope["path"]))


class SafeHeaders:
    """ASGI middleware: HEADERS and POLICY on every response. Each has its own nonce, scope["nonce"]: the scripts that
    stand in the page run because they name it, and a text in the page cannot know it. Files that never change stay in
    the browser."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        scope["nonce"] = secrets.token_urlsafe(16)
        headers = (*HEADERS, (b"content-security-policy", policy(scope["nonce"]).encode()))

        async def with_headers(message):
            if message["type"] == "http.response.start":
                kept = [KEPT] if message["status"] == 200 and is_lasting(scope) else []
                message["headers"] = [*message.get("headers", []), *headers, *kept]
            await send(message)

        await self.app(scope, receive, with_headers)


class Files(StaticFiles):
    """Send packed files as they are: every browser unpacks them."""

    def file_response(self, full_path, *args, **kwargs) -> Response:
        response = super().file_response(full_path, *args, **kwargs)
        if encoding := mimetypes.guess_type(full_path)[1]:
            response.headers["content-encoding"] = encoding
        return response


def _routes(workspace: Workspace) -> list[Route]:
    """Answer with the rest of a long text, and with a panel as CSV; no coroutines, so Starlette runs them in
    threads."""

    def text(request: Request) -> Response:
        try:
            return JSONResponse({"text": chunk(workspace, request.query_params)})
        except RunError as error:
            return PlainTextResponse(str(error), 404)

    def panel(request: Request) -> Response:
        query = request.query_params
        keys, name = names(query.get("runs", ""))[:AT_ONCE], query.get("metric", "")[:MAX_NAME_CHARS]
        try:
            values = panel_csv([workspace.open(key) for key in keys], name)
        except RunError as error:
            return PlainTextResponse(str(error), 404)
        file = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:80] or "metric"
        headers = {"content-disposition": f'attachment; filename="{file}.csv"'}
        return Response(values.encode("utf-8", "replace"), headers=headers, media_type="text/csv")

    return [Route("/space/text", text), Route("/space/panel.csv", panel)]


def chunk(workspace: Workspace, query: Mapping[str, str]) -> str:
    """Read a range of a text. query: the source that `reading.answer` was given, with from and to.

    Raises:
        RunError: the text does not exist.
    """
    try:
        start, stop = int(query["from"]), int(query["to"])
        field = query.get("field", "response")
        if field not in TEXT_FIELDS or not 0 <= start <= stop <= start + MAX_CHUNK_CHARS:
            raise ValueError
        opened = workspace.open(query["run"])
        if "place" in query:
            if not PLACE.fullmatch(query["place"]) or int(query["row"]) < 0:
                raise ValueError
            row = results.sample(opened.run, query["place"], int(query["row"]), (field,))
        else:
            groups, _ = workspace.index(opened).read()
            step, sample = int(query["step"]), int(query.get("sample", 0))
            position = position_of(groups, step, int(query["group"]))
            if position is None or not 0 <= sample < groups.size[position]:
                raise RunError("This group is gone.")
            first = int(groups.row[position]) + sample
            row = rows_of(read_columns(opened.run, step, (field,), slice(first, first + 1)))[0]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise RunError("This is not a part of a text of a run.") from None
    return plain(str(row.get(field) or "")[start:stop])


def hosts_of(host: str) -> Container[str] | None:
    """List names that an app listening on `host` answers to; None: any, as on the Hub and where it was opened to
    others."""
    return LOOPBACK if host in LOOPBACK and not os.environ.get("SPACE_ID") else None


def app_kwargs(version: str, workspace: Workspace, hosts: Container[str] | None = None) -> dict:
    """Return, for `launch`: routes before Gradio's own, the page's head, the headers, and what is refused."""
    files = Mount("/space", Files(directory=STATIC))
    inner = [
        Middleware(SafeHeaders),
        Middleware(Gate, hosts=hosts),
        Middleware(Document, head=head(version)),
    ]
    return {
        "routes": [*_routes(workspace), files],
        "middleware": inner,
        "docs_url": None,
        "redoc_url": None,
    }
