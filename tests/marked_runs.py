"""A run whose every string is markup that leaves a trace, and runs whose values have other types than they should."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from space_runs import learning_run

# "/> ends an attribute and a tag; every element has data-foreign; what runs sets a global, asks, and leaves the page
MARK = (
    "\"'/><img data-foreign src=x onerror=\"window.foreign=1;alert(1);location='http://evil.test/'\">"
    '<a data-foreign href="http://evil.test/">a</a><b data-foreign>b</b>'
)
PLOTLY = (
    '<a href="http://evil.test/p">p</a><b>b</b>&lt;a href="http://evil.test/q"&gt;'  # what Plotly's labels would read
)
SHORT, UNIT = "<b data-foreign>b</b>", "<i data-foreign>"


def marked_run(directory: Path, seed: int = 1) -> Path:
    """A learning run of two steps; afterwards every string of every file of it is MARK and a number, so that they
    differ."""
    learning_run(directory, steps=2, seed=seed, name="marked", prompts=3, size=2)
    for name in ("run.json", "prior.json"):
        rewrite(directory / name, lambda found: marked(found))
    run = json.loads((directory / "run.json").read_text())
    run["args"]["algo"]["advantage"] |= {"ebpo": {"fail_reward": MARK, "pass_reward": MARK}, MARK: MARK, "seed": seed}
    (directory / "run.json").write_text(json.dumps(run))
    lines(directory / "checkpoints.jsonl", lambda row: {**marked(row), "step": MARK})
    lines(directory / "metrics.jsonl", lambda row: {**row, MARK: row["step"], PLOTLY: 1.0, f"eval_{MARK}_pass1": 0.5})
    with open(directory / "metrics.jsonl", "a") as file:
        bad = [{"step": 3, "time": MARK, "rollout/reward_mean": MARK}, {"step": MARK}, {MARK: MARK}]
        file.write("".join(json.dumps(row) + "\n" for row in bad))
    for path in directory.rglob("*.parquet"):
        pq.write_table(texts(pq.read_table(path)), path)
    for path in directory.rglob("summary.json"):
        task = path.parent.parent.name
        rewrite(path, lambda found, task=task: {**marked(found), **named(found, f"{MARK} {task}")})
    return directory


def marked(value, at: str = ""):
    """Every string in it."""
    if isinstance(value, dict):
        return {key: marked(each, f"{at} {key}") for key, each in value.items()}
    if isinstance(value, list):
        return [marked(each, f"{at} {i}") for i, each in enumerate(value)]
    return f"{MARK}{at}" if isinstance(value, str) else value


def named(summary: dict, name: str) -> dict:
    return {"task": {**marked(summary["task"]), "name": name}, "protocol": {**marked(summary["protocol"]), "n": MARK}}


def texts(table: pa.Table) -> pa.Table:
    for i, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            values = [value and f"{MARK} {value}" for value in table[field.name].to_pylist()]
            table = table.set_column(i, field.name, pa.array(values, pa.string()))
    return table


def attacks(run: Path) -> Iterator[str]:
    """One field of one file after the other holds MARK, whatever its type was, and then what it held before. The files
    are walked as they are, so fields that a later version adds are among them."""
    for path in sorted(path for path in run.rglob("*.*") if path.is_file()):
        before, name = path.read_bytes(), path.relative_to(run).as_posix()
        for field, attacked in _attacked(path):
            path.write_bytes(attacked)
            yield f"{name}: {field}"
        path.write_bytes(before)


def _attacked(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.suffix == ".parquet":
        yield from _columns(pq.read_table(path))
    elif path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        dump = lambda rows: "".join(json.dumps(row) + "\n" for row in rows).encode()  # noqa: E731
        for field in dict.fromkeys(field for row in rows for field in row):
            yield field, dump([{**row, field: MARK} for row in rows])
        yield "a name", dump([{**row, MARK: 1.0} for row in rows])
    elif path.suffix == ".json":
        found = json.loads(path.read_text())
        for place in _places(found):
            yield "/".join(map(str, place)) or "all of it", json.dumps(_with(found, place, MARK)).encode()
        yield "a name", json.dumps({**found, MARK: MARK}).encode()


def _columns(table: pa.Table) -> Iterator[tuple[str, bytes]]:
    for i, field in enumerate(table.schema):
        sink = pa.BufferOutputStream()
        pq.write_table(table.set_column(i, field.name, strings(len(table))), sink)
        yield field.name, sink.getvalue().to_pybytes()


def _places(value, at: tuple = ()) -> Iterator[tuple]:
    """Of everything in it, and of itself; of a list's entries the first."""
    yield at
    below = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for name, each in below:
        yield from _places(each, (*at, name))


def _with(value, place: tuple, new):
    if not place:
        return new
    first, *rest = place
    changed = _with(value[first], tuple(rest), new)
    return {**value, first: changed} if isinstance(value, dict) else [*value[:first], changed, *value[first + 1 :]]


def rewrite(path: Path, change) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def lines(path: Path, change) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(change(row)) + "\n" for row in rows))


def columns(path: Path, **values: pa.Array) -> None:
    """Other columns for a Parquet file; those that are given have as many rows as it."""
    table = pq.read_table(path)
    for name, value in values.items():
        table = table.set_column(table.schema.get_field_index(name), name, value)
    pq.write_table(table, path)


def setting(run: Path, **values) -> None:
    """Settings of the estimator in run.json."""
    rewrite(run / "run.json", lambda found: {**found, "args": {"algo": {"advantage": {"ebpo": values, **values}}}})


def metrics(summary: dict, **values) -> dict:
    return {**summary, "metrics": {**summary["metrics"], **values}}


def rollouts(run: Path) -> Path:
    return run / "rollouts" / "step-000002.parquet"


def result(run: Path, name: str = "summary.json") -> Path:
    return sorted((run / "eval").glob(f"*/*/*/{name}"))[0]


def strings(count: int) -> pa.Array:
    return pa.array([MARK] * count)


def not_utf8(count: int) -> pa.Array:
    offsets = pa.py_buffer(b"".join((2 * i).to_bytes(4, "little") for i in range(count + 1)))
    return pa.Array.from_buffers(pa.string(), count, [None, offsets, pa.py_buffer(b"\xff\xfe" * count)])


def twice(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.append_column("group", table["group"]).append_column("prompt", table["prompt"]), path)


def moved(path: Path, name: str) -> None:
    path.parent.rename(path.parent.parent / name)


ROWS, SAMPLES = 6, 120  # of a step, of a result, in `marked_run`
NUMBER = {"value": 0.5, "interval": [0.4, 0.6]}
BROKEN = {  # what is wrong: how a run of `marked_run` becomes so
    "rewards are strings": lambda run: columns(rollouts(run), reward=strings(ROWS)),
    "groups are strings": lambda run: columns(rollouts(run), group=strings(ROWS)),
    "groups are missing": lambda run: columns(rollouts(run), group=pa.nulls(ROWS, pa.int32())),
    "lengths are strings": lambda run: columns(rollouts(run), response_length=strings(ROWS), sample=strings(ROWS)),
    "advantages beyond floats": lambda run: columns(rollouts(run), advantage=pa.array([1e308, -1e308] * (ROWS // 2))),
    "flags are strings": lambda run: columns(rollouts(run), valid=strings(ROWS), truncated=strings(ROWS)),
    "texts are numbers": lambda run: columns(
        rollouts(run), prompt=pa.array(range(ROWS)), cluster=pa.array(range(ROWS))
    ),
    "texts are lists": lambda run: columns(
        rollouts(run), response=pa.array([[MARK]] * ROWS), label=pa.array([[1]] * ROWS)
    ),
    "prompts are no UTF-8": lambda run: columns(rollouts(run), prompt=not_utf8(ROWS)),
    "clusters are no UTF-8": lambda run: columns(rollouts(run), cluster=not_utf8(ROWS), prompt_id=not_utf8(ROWS)),
    "answers are no UTF-8": lambda run: columns(rollouts(run), response=not_utf8(ROWS)),
    "columns stand there twice": lambda run: twice(rollouts(run)),
    "samples are strings": lambda run: columns(
        result(run, "samples.parquet"), length=strings(SAMPLES), correct=strings(SAMPLES)
    ),
    "samples are no UTF-8": lambda run: columns(result(run, "samples.parquet"), question=not_utf8(SAMPLES)),
    "a reward beyond floats": lambda run: setting(run, fail_reward=10**400, pass_reward=MARK),
    "a reward that is none": lambda run: setting(run, fail_reward=float("nan"), pass_reward=float("inf")),
    "the estimator is a list": lambda run: setting(run, estimator=[MARK]),
    "half a character": lambda run: setting(run, estimator="\ud800" + MARK),
    "run.json is a string": lambda run: (run / "run.json").write_text(json.dumps(MARK)),
    "settings of many floors": lambda run: (run / "run.json").write_text(f'{{"args": {"[" * 900}{"]" * 900}}}'),
    "a task of half a character": lambda run: rewrite(result(run), lambda s: {**s, "task": {"name": "\ud800"}}),
    "a protocol of half a character": lambda run: rewrite(result(run), lambda s: {**s, "protocol": {"name": "\ud800"}}),
    "numbers are strings": lambda run: rewrite(
        result(run), lambda s: metrics(s, **{"pass@1": {**NUMBER, "value": MARK}})
    ),
    "no questions": lambda run: rewrite(result(run), lambda s: metrics(s, questions=0, samples_per_question=-1)),
    "endless samples": lambda run: rewrite(result(run), lambda s: metrics(s, samples_per_question=float("inf"))),
    "a k that is no number": lambda run: rewrite(
        result(run), lambda s: metrics(s, **{"pass@²": NUMBER, "pass@": NUMBER})
    ),
    "a k beyond numbers": lambda run: rewrite(result(run), lambda s: metrics(s, **{f"pass@{10**30}": NUMBER})),
    "an old result without samples": lambda run: result(run).write_text('{"samples_per_question": 0}'),
    "a step beyond numbers": lambda run: moved(result(run), "step-" + "9" * 30),
    "a step below zero": lambda run: moved(result(run), "step--5"),
    "two results of one name": lambda run: [
        rewrite(path, lambda s: {**s, "task": {"name": "x"}}) for path in run.rglob("summary.json")
    ],
    "metrics are strings": lambda run: (run / "metrics.jsonl").write_text(
        json.dumps({"step": 1, "rollout/reward_mean": MARK}) + "\n"
    ),
    "metrics beyond floats": lambda run: (run / "metrics.jsonl").write_text(
        f'{{"step": 1, "time": 1{"0" * 400}}}\n{{"step": 2, "response_length": 1e308}}\n'
    ),
}
