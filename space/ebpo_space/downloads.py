"""GET /space/rollouts: the Parquet file of one step's rollouts, as it lies in the run directory."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.responses import FileResponse, Response

from .errors import RunError
from .groups import file_of
from .runs import inside
from .text import HTML, attribute, html
from .workspace import Workspace

ROUTE = "/space/rollouts"


def button(key: str, step: int) -> HTML:
    """Download the rollouts of a step."""
    return html(
        '<button type="button" data-download="{}" data-run="{}" data-step="{}">Parquet of step {}</button>',
        *(attribute(f".{ROUTE}"), attribute(key), step, step),
    )


def answer(workspace: Workspace, parameters: Mapping[str, str]) -> Response:
    """The file.

    Raises:
        RunError: there is no such run or step, or its file leads out of the run.
    """
    run = workspace.runs.get(parameters.get("run", ""))
    step = parameters.get("step", "")
    name = file_of(run, int(step)) if re.fullmatch(r"\d{1,9}", step, re.ASCII) else None
    if name is None:
        raise RunError(f"There are no rollouts of step {step[:20]}.")
    prefix = re.sub(r"[^A-Za-z0-9.-]+", "_", run.key).strip("._")[-80:] or "run"
    return FileResponse(
        inside(run, "rollouts", name), filename=f"{prefix}-{name}", headers={"cache-control": "no-store"}
    )
