"""Record in a Parquet file which model its pass rates were measured with, and warn of training another one in their order.

`data difficulty` writes it into the file's metadata, `data order` keeps it and adds by what it ordered.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openrlhf_ebpo.checks.model_check import MODEL
from openrlhf_ebpo.checks.model_fit import one_line
from openrlhf_ebpo.checks.preflight import names_of

KEY = b"openrlhf_ebpo"  # in the file's metadata: an object of JSON
DATASET = "data.prompt_dataset"
MAX_CHARS = 200  # of a name


def model_mark(name: str) -> dict[str, str]:
    """The record of a model: of a folder and of a name on the Hub the last part, so that copies are the same model."""
    return {"name": Path(name).name}


def marked(table, **marks: Any):
    """Add these marks to those of the table; .jsonl files do not keep them."""
    metadata = table.schema.metadata or {}
    return table.replace_schema_metadata({**metadata, KEY: json.dumps({**_marks(metadata), **marks})})


def marks_of(path: Path) -> dict[str, Any]:
    """Those of a Parquet file; none of any other."""
    import pyarrow.parquet as pq

    return _marks(pq.read_schema(path).metadata or {}) if path.suffix == ".parquet" else {}


def _marks(metadata: dict) -> dict[str, Any]:
    try:
        found = json.loads(metadata.get(KEY, b"{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def order_warnings(args: dict) -> list[str]:
    """Warn of an easy-to-hard order by the pass rates of a model with another name. args: by flag."""
    if args["data.order"] != "as_is":
        return []
    now, warnings = model_mark(args[MODEL])["name"], []
    for path in (Path(name.strip().partition("@")[0]) for name in names_of(args, DATASET)):
        marks = marks_of(path) if path.is_file() else {}
        was = marks.get("pass_rates") if marks.get("order") == "difficulty" else None
        name = was.get("name") if isinstance(was, dict) else None
        if isinstance(name, str) and name != now:
            warnings.append(
                f"warning: --{DATASET} {path}: its order from easy to hard was measured with {one_line(name, MAX_CHARS)}, and "
                f"--{MODEL} is {now}: what is easy for the one is not for the other. If they differ, measure with this one "
                "(openrlhf-ebpo data difficulty, then data order)"
            )
    return warnings
