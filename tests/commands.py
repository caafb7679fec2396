"""Files of rows that commands read, and what a command says when it refuses."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def write_rows(path: Path, rows: list[dict]) -> Path:
    """Write Parquet if the name says so, JSON lines otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refused(main, *argv) -> str:
    """Run a command that is refused; return its error."""
    with pytest.raises(SystemExit) as stopped:
        main(list(map(str, argv)))
    assert str(stopped.value.code).startswith("error: ")
    return stopped.value.code
