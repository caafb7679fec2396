"""Files of a run may hold anything: whatever the type of a column or a value, the page stays and says what it cannot
show."""

import contextlib
import datetime
import decimal
import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from space_runs import evaluation, learning_run

from openrlhf_ebpo.space import results
from openrlhf_ebpo.space.errors import RunError
from openrlhf_ebpo.space.groups import Index
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.pages import PAGES
from openrlhf_ebpo.space.runs import Run, Runs
from openrlhf_ebpo.space.search import answers
from openrlhf_ebpo.space.workspace import Workspace

NOW = datetime.datetime(2026, 1, 1)
TYPES = {
    "null": (pa.null(), None),
    "bool": (pa.bool_(), True),
    **{str(kind): (kind, 1) for kind in (pa.int32(), pa.uint64())},
    **{str(kind): (kind, 0.5) for kind in (pa.float16(), pa.float64())},
    "nan": (pa.float64(), float("nan")),
    "huge": (pa.float64(), 1e308),
    **{str(kind): (kind, "x") for kind in (pa.string(), pa.large_string(), pa.string_view())},
    **{str(kind): (kind, b"\xff") for kind in (pa.binary(), pa.binary_view(), pa.binary(1))},
    "decimal": (pa.decimal128(30, 2), decimal.Decimal("1.50")),
    "date32": (pa.date32(), NOW.date()),
    "time": (pa.time64("ns"), datetime.time(1)),
    "timestamp": (pa.timestamp("ns"), 10**18 + 1),
    "far away": (pa.timestamp("s"), 10**14),
    "unknown zone": (pa.timestamp("us", "Nowhere/Else"), 10**15),
    "list": (pa.list_(pa.int32()), [1, 2]),
    "struct": (pa.struct({"a": pa.int32()}), {"a": 1}),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), "x"),
    "dictionary of numbers": (pa.dictionary(pa.int8(), pa.int64()), 1),
    "uuid": (pa.uuid(), b"0123456789abcdef"),
    "json": (pa.json_(), "{}"),
}


ROLLOUTS, SAMPLES = "rollouts/step-000001.parquet", "eval/*/t/step-*/samples.parquet"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = learning_run(tmp_path_factory.mktemp("typed") / "a", steps=1, seed=1, name="a", prompts=1)
    shutil.rmtree(path / "eval")
    evaluation(path, "t", 0, 0.5, 1, questions=2, n=2)
    return path


def rendered(folder: Path, *tabs: str) -> str:
    workspace = Workspace(Runs([str(folder)]))
    workspace.warm()
    return "".join(str(PAGES[tab].render(clean({"tab": tab}), workspace)) for tab in tabs)


def with_columns(table: pa.Table, kind: str, names: Collection[str]) -> pa.Table:
    type_, value = TYPES[kind]
    values = pa.array([value] * (table.num_rows - 1) + [None], getattr(type_, "storage_type", type_))
    if isinstance(type_, pa.BaseExtensionType):
        values = pa.ExtensionArray.from_storage(type_, values)
    for name in names:
        table = table.set_column(table.column_names.index(name), name, values)
    return table


def read_rollouts(path: Path) -> None:
    opened = Run("a", path, 0)
    groups, problems = Index(opened).read()
    assert len(groups) or problems
    for position in range(len(groups)):
        in_a_message(lambda position=position: answers(opened, groups, position))


def read_samples(path: Path) -> None:
    opened = Run("a", path, 0)
    (result,), _ = results.find(opened)
    for read in (results.rates, results.questions):
        in_a_message(lambda read=read: read(opened, result))


def in_a_message(read: Callable) -> None:
    with contextlib.suppress(RunError):
        read()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("place", [ROLLOUTS, SAMPLES])
def test_no_type_of_a_column_ends_a_page(run, kind, place):
    path = next(run.glob(place))
    saved, table = path.read_bytes(), pq.read_table(path)
    texts = {name for name in table.column_names if table.schema.field(name).type == pa.string()}
    try:
        for name in table.column_names:
            pq.write_table(with_columns(table, kind, [name]), path)
            (read_rollouts if place == ROLLOUTS else read_samples)(run)
        pq.write_table(with_columns(table, kind, texts), path)
        assert rendered(run, "samples" if place == ROLLOUTS else "evaluation")
    finally:
        path.write_bytes(saved)


@pytest.mark.parametrize("value", [None, True, 2**70, 1e308, "x", [[]], {"a": {"b": []}}], ids=str)
def test_no_value_of_a_metric_or_a_setting_ends_a_page(run, value):
    metrics, about = run / "metrics.jsonl", run / "run.json"
    saved = {path: path.read_text() for path in (metrics, about)}
    row, told = json.loads(saved[metrics].splitlines()[-1]), json.loads(saved[about])
    try:
        metrics.write_text(
            "".join(json.dumps({**row, name: value, "step": step}) + "\n" for step, name in enumerate(row))
        )
        for name in told:
            about.write_text(json.dumps({**told, name: value}))
            assert rendered(run, "overview")
        assert rendered(run, *PAGES)
    finally:
        for path, text in saved.items():
            path.write_text(text)


def test_the_first_page_counts_damaged_rollout_files(tmp_path):
    path = learning_run(tmp_path / "a", steps=3, seed=1, name="a", prompts=1)
    (path / "rollouts" / "step-000002.parquet").write_bytes(b"PAR1")
    assert "1 of 3 rollout files" in rendered(path, "overview")
