"""The route besides pages: the rest of a long text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.responses import JSONResponse

from . import results
from .errors import RunError
from .groups import read_columns
from .parquet import rows_of
from .search import position_of
from .text import plain
from .workspace import Opened, Workspace

MAX_CHARS = 64_000  # of one request
FIELDS = ("prompt", "response", "question")
_PLACE = re.compile(r"(eval/)?[^/]{1,200}/[^/]{1,200}/step-\d{1,9}", re.ASCII)


def text(workspace: Workspace, query: Mapping[str, str]) -> JSONResponse:
    return JSONResponse({"text": chunk(workspace, query)})


def chunk(workspace: Workspace, query: Mapping[str, str]) -> str:
    """Read a range of a text. query: the source that `reading.answer` was given, with from and to.

    Raises:
        RunError: there is no such text.
    """
    try:
        start, stop = int(query["from"]), int(query["to"])
        field = query.get("field", "response")
        if field not in FIELDS or not 0 <= start <= stop <= start + MAX_CHARS:
            raise ValueError
        opened = workspace.open(query["run"])
        row = _sample(opened, query, field) if "place" in query else _rollout(workspace, opened, query, field)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise RunError("This is not a part of a text of a run.") from None
    return plain(str(row.get(field) or "")[start:stop])


def _rollout(workspace: Workspace, opened: Opened, query: Mapping[str, str], field: str) -> dict:
    groups, _ = workspace.index(opened).read()
    step, sample = int(query["step"]), int(query.get("sample", 0))
    position = position_of(groups, step, int(query["group"]))
    if position is None or not 0 <= sample < groups.size[position]:
        raise RunError("This group is gone.")
    first = int(groups.row[position]) + sample
    return rows_of(read_columns(opened.run, step, (field,), slice(first, first + 1)))[0]


def _sample(opened: Opened, query: Mapping[str, str], field: str) -> dict:
    row = int(query["row"])
    if not _PLACE.fullmatch(query["place"]) or row < 0:
        raise ValueError
    return results.sample(opened.run, query["place"], row, (field,))
