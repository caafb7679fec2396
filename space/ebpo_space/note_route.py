"""POST /space/notes: what the pages send to keep a note beside a run.

Another site's page can make a visitor's browser send requests here. So a request has to say JSON, which a foreign page may
not send unasked (gate.py holds every POST to that), and to come from this very page: its Origin is this app's host. With
`--notes auto` that host has to be this machine's own name besides, so that neither a name that points here (DNS rebinding)
nor a proxy in front of the app can write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from .errors import RunError
from .notes import LOOPBACK, Changed, Note, tags_of
from .search import position_of
from .workspace import Workspace


class Refused(Exception):
    """A request that is not this app's page's."""


def route(workspace: Workspace) -> Route:
    async def keep(request: Request) -> JSONResponse:
        try:
            check_sender(request.headers, workspace.notes.anywhere)
            note = await run_in_threadpool(kept, workspace, json.loads(await request.body()))
        except Refused as error:
            return JSONResponse({"error": str(error)}, 403)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return JSONResponse({"error": "This is no note."}, 422)
        except Changed as error:
            return JSONResponse({"error": str(error), **said(error.note)}, 409)
        except RunError as error:
            return JSONResponse({"error": str(error)}, 422)
        return JSONResponse(said(note))

    return Route("/space/notes", keep, methods=["POST"])


def said(note: Note) -> dict:
    return {"note": note.text, "tags": list(note.tags), "time": note.time}


def check_sender(headers: Mapping[str, str], anywhere: bool) -> None:
    """
    Args:
        anywhere: notes may be written through other names of this machine too.

    Raises:
        Refused: the request may come from another site's page.
    """
    host = headers.get("host", "")
    origin = urlsplit(headers.get("origin", ""))
    if origin.scheme not in ("http", "https") or origin.netloc != host or not host:
        raise Refused("A note is kept only for a page of this app.")
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise Refused("A note is kept only for a page of this app.")
    if not anywhere and origin.hostname not in LOOPBACK:
        raise Refused(
            "Notes are kept only where the app is opened on its own machine; --notes on allows it from others."
        )


def kept(workspace: Workspace, asked: dict) -> Note:
    """
    Raises:
        Changed: somebody else has written this note meanwhile.
        RunError: there is no such group, or the note cannot be written.
    """
    opened = workspace.open(str(asked["run"]))
    groups, _ = workspace.index(opened).read()
    place = int(asked["step"]), int(asked["group"])
    position = position_of(groups, *place)
    if position is None:
        raise RunError("This group is gone.")
    note = Note(str(asked["note"]), tuple(tags_of(asked["tags"])), str(asked["time"]))
    return workspace.notes.keep(opened.run, place, groups.prompt_id[position] or "", note)
