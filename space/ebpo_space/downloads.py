"""GET /space/export: the rollouts of all groups that a view of Samples selects, sent while they are read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from .errors import RunError
from .exports import FORMATS, SECONDS, export, name_of
from .links import clean
from .selection import selected
from .workspace import Workspace

AT_ONCE = 2  # downloads; a further one is asked to come again
_places = threading.BoundedSemaphore(AT_ONCE)


class Download(StreamingResponse):
    """done: called when it has ended, however that is: after SECONDS too, as a browser may stop reading and say nothing."""

    def __init__(self, pieces: Iterator[bytes], name: str, media_type: str, done: Callable[[], None]):
        headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
        super().__init__(pieces, headers=headers, media_type=media_type)
        self.done = done

    async def __call__(self, scope, receive, send) -> None:
        try:
            await asyncio.wait_for(super().__call__(scope, receive, send), SECONDS)
        finally:
            self.done()


def answer(workspace: Workspace, parameters: Mapping[str, str]) -> Response:
    """The file; with `check`, nothing, where it could be had.

    Raises:
        RunError: as `asked_for` does.
    """
    if not _places.acquire(blocking=False):
        return PlainTextResponse(f"{AT_ONCE} downloads are under way, and no more run at a time. Try again later.", 503)
    download = None
    try:
        name, kind, pieces = asked_for(workspace, parameters)
        if "check" in parameters:
            return Response(status_code=204)
        download = Download(pieces, name, kind, _places.release)
        return download
    finally:
        if download is None:
            _places.release()


def asked_for(workspace: Workspace, parameters: Mapping[str, str]) -> tuple[str, str, Iterator[bytes]]:
    """Name, media type and pieces of a file.

    Raises:
        RunError: there is no such run or format, the filters are wrong or let nothing through, or it would be too large or a
            part only.
    """
    kind = parameters.get("format", "")
    if kind not in FORMATS:
        raise RunError(f"format is one of {', '.join(FORMATS)}.")
    view = clean(parameters)
    keys = workspace.chosen(view)
    if not keys:
        raise RunError("There are no runs.")
    opened = workspace.open(view["run"] if view["run"] in keys else keys[0])
    index = workspace.index(opened)
    groups, _ = index.read()
    found = selected(view, index, opened.rewards)
    if found.note:  # a search that did not come to its end
        raise RunError(f"This would be a part only. {found.note}")
    positions = found.positions
    if not len(positions):
        raise RunError("No group fits.")
    return name_of(opened.run, kind), FORMATS[kind].media_type, export(opened.run, groups, positions, kind)
