"""Record which model pass rates were measured with, and refuse an easy-to-hard order by them for another one.

`data difficulty` writes it into the Parquet file's metadata, `data order` carries it on and adds by what it ordered.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from openrlhf_ebpo.checks.model_check import MODEL, model_folder
from openrlhf_ebpo.checks.model_fit import one_line
from openrlhf_ebpo.errors import raise_problems
from openrlhf_ebpo.models.identity import weights_identity

KEY = b"openrlhf_ebpo"  # in the file's metadata: an object of JSON
FLAG = "data.order_any_model"
DATASET = "data.prompt_dataset"
MAX_CHARS = 200  # of a name


def add_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("order of the data").add_argument(
        f"--{FLAG}",
        action="store_true",
        default=False,
        help="train in an easy-to-hard order that was measured with another model; without, it is refused",
    )


def model_mark(name: str) -> dict[str, str | None]:
    """The record of a model: its name, of a folder the last part, and its weights, where this machine has them."""
    folder = model_folder(name)
    shown = Path(name).resolve().name if Path(name).is_dir() else name
    return {"name": shown, "weights": weights_identity(folder) if folder else None}


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


def check(values: dict) -> None:
    """values: by flag. What cannot be compared is not refused: neither model's weights are here, nor are both names of the Hub.

    Raises:
        UsageError: an order by the pass rates of another model.
    """
    if values["data.order"] != "as_is" or values[FLAG]:
        return
    paths = [Path(name.strip().partition("@")[0]) for name in (values[DATASET] or "").split(",")]
    raise_problems([line for path in paths if path.is_file() for line in _of_file(path, values[MODEL])])


def _of_file(path: Path, model: str) -> list[str]:
    marks = marks_of(path)
    was = marks.get("pass_rates")
    if not isinstance(was, dict) or marks.get("order") != "difficulty":
        return []
    now = model_mark(model)
    key = "weights" if was.get("weights") and now["weights"] else "name"
    if was.get(key) == now[key] or (key == "name" and not (_on_hub(was) and _on_hub(now))):
        return []
    return [
        f"--{DATASET} {path}: its order from easy to hard was measured with {_describe(was)}, and --{MODEL} is {_describe(now)}: "
        "what is easy for the one is not for the other. Measure with this one (openrlhf-ebpo data difficulty --model "
        f"{model} …, then data order), or accept the order with --{FLAG}"
    ]


def _on_hub(mark: dict) -> bool:
    return "/" in str(mark.get("name"))


def _describe(mark: dict) -> str:
    """Somebody else's file has chosen the texts."""
    name, weights = (one_line(str(mark.get(key) or "not known here"), MAX_CHARS) for key in ("name", "weights"))
    return f"{name} (weights {weights})"
