"""Pass rates know the model that they were measured with, and an easy-to-hard order by them is refused for another one.

`data difficulty` writes it into the Parquet file's metadata, `data order` carries it on and adds by what it ordered.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from openrlhf_ebpo.checks.model_check import MODEL, model_folder
from openrlhf_ebpo.checks.preflight import DATA_SUFFIXES, data_columns
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.models.identity import weights_identity

KEY = b"openrlhf_ebpo"  # in the file's metadata: an object of JSON
FLAG = "data.order_any_model"
DATASET = "data.prompt_dataset"
LONGEST = 200  # characters of somebody else's text that are shown


def add_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("order of the data").add_argument(
        f"--{FLAG}",
        action="store_true",
        default=False,
        help="train in an easy-to-hard order that was measured with another model; without, it is refused",
    )


def model_mark(name: str) -> dict[str, str | None]:
    """What is written of a model: its name, of a folder the last part, and its weights, where this machine has them."""
    folder = model_folder(name)
    shown = Path(name).resolve().name if Path(name).is_dir() else name
    return {"name": shown, "weights": weights_identity(folder) if folder else None}


def marked(table, **marks: Any):
    """The table with these marks beside those that it has; .jsonl files do not keep them."""
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


def check(values: dict) -> list[str]:
    """args by flag. Returns notices: what could not be compared.

    Raises:
        UsageError: an order by the pass rates of another model.
    """
    if values["data.order"] != "as_is" or values[FLAG]:
        return []
    paths = [Path(name.strip().partition("@")[0]) for name in (values[DATASET] or "").split(",")]
    found = [
        line
        for path in paths
        if path.is_file() and path.suffix in DATA_SUFFIXES
        for line in _of_file(path, values[MODEL])
    ]
    if refused := [line for line, stops in found if stops]:
        raise UsageError("\n".join(refused))
    return [line for line, _ in found]


def _of_file(path: Path, model: str) -> list[tuple[str, bool]]:
    """At most one line, and whether it stops the training."""
    marks, file = marks_of(path), f"--{DATASET} {path}"
    measured = marks.get("pass_rates")
    if not isinstance(measured, dict):
        unknown = (
            f"warning: {file} does not say which model its pass rates were measured with; that it is this one is on you"
        )
        return [(unknown, False)] if "pass_rate" in data_columns(path) else []
    if marks.get("order") != "difficulty":
        return []
    was, now = measured, model_mark(model)
    if was.get("weights") and now["weights"]:
        same = was["weights"] == now["weights"]
    else:
        same = was.get("name") == now["name"] if _on_hub(was) and _on_hub(now) else None
    if same is None:
        text = f"{file} was ordered with {_shown(was)}; whether that is {_shown(now)} "
        if was.get("weights") and not Path(model).is_dir():  # on the Hub, still to be fetched
            return [(f"notice: {text}is compared before training starts", False)]
        return [(f"warning: {text}cannot be told: both must have their weights in safetensors", False)]
    return [] if same else [(_refusal(file, was, now, model), True)]


def _on_hub(mark: dict) -> bool:
    return "/" in str(mark.get("name"))


def _shown(mark: dict) -> str:
    return f"{_printable(mark.get('name'))} (weights {_printable(mark.get('weights') or 'not known here')})"


def _printable(value: Any) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in str(value)[:LONGEST])


def _refusal(file: str, was: dict, now: dict, model: str) -> str:
    return (
        f"{file}: its order from easy to hard was measured with {_shown(was)}, and --{MODEL} is {_shown(now)}: what is easy for the "
        f"one is not for the other. Measure with this one (openrlhf-ebpo data difficulty --model {model} …, then data order), or "
        f"accept the order with --{FLAG}"
    )
