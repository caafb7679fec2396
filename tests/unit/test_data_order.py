"""Training order: by topic, by difficulty, at random."""

import argparse
import functools
from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest
from properties import given, settings, st

from openrlhf_ebpo.cli.data import main
from openrlhf_ebpo.data import order
from openrlhf_ebpo.data.training_tables import read_table, with_column, write_table
from openrlhf_ebpo.errors import UsageError

rows = st.lists(st.tuples(st.sampled_from(["algebra", "geometry", "counting"]), st.integers(0, 16)), max_size=60)


def ids(count: int) -> list[str]:
    return [f"{i * 7919:016x}" for i in range(count)]


@settings(max_examples=30)
@given(rows, st.integers(0, 5))
def test_topic_order_is_a_permutation_of_contiguous_clusters(rows, seed):
    clusters = [cluster for cluster, _ in rows]
    places = order.order_rows(ids(len(rows)), seed, clusters)
    assert sorted(places) == list(range(len(rows)))
    runs = [cluster for cluster, _ in groupby(clusters[i] for i in places)]
    assert len(runs) == len(set(clusters))


@settings(max_examples=30)
@given(rows, st.integers(0, 5))
def test_difficulty_order_is_a_monotone_permutation(rows, seed):
    rates = np.array([rate / 16 for _, rate in rows])
    places = order.order_rows(ids(len(rows)), seed, rates=rates)
    assert sorted(places) == list(range(len(rows)))
    assert (np.diff(rates[places]) <= 0).all()


@settings(max_examples=30)
@given(rows, st.randoms(use_true_random=False))
def test_the_order_depends_on_the_ids_not_on_the_rows_places(rows, random):
    names, clusters = ids(len(rows)), [cluster for cluster, _ in rows]
    moved = list(range(len(rows)))
    random.shuffle(moved)
    again = order.order_rows([names[i] for i in moved], 1, [clusters[i] for i in moved])
    assert [moved[i] for i in again] == order.order_rows(names, 1, clusters)


def test_the_order_is_the_same_for_all_time():
    """Fixed here: a change would silently reorder everybody's curriculum."""
    names = ["a", "b", "c", "d", "e", "f"]
    assert order.order_rows(names, 42) == [5, 3, 2, 0, 1, 4]


@pytest.fixture
def prepared(tmp_path):
    path = tmp_path / "train.parquet"
    table = pa.table(
        {
            "id": ids(40),
            "prompt": [f"question {i}" for i in range(40)],
            "label": ["1"] * 40,
            "cluster": ["algebra", "geometry", "algebra", "counting"] * 10,
            "pass_rate": [None, None, *(i / 37 for i in range(38))],
        }
    )
    write_table(table, path)
    return path


def run(path, *flags, suffix="parquet"):
    output = path.with_name(f"ordered.{suffix}")
    main(["order", "--input", str(path), "--output", str(output), *map(str, flags)])
    return output


def test_the_command_keeps_rows_and_columns_and_says_how_to_train(prepared, capsys):
    ordered = read_table(run(prepared, "--by", "topic"))
    before = read_table(prepared)
    assert ordered.schema == before.schema
    assert sorted(ordered.to_pylist(), key=str) == sorted(before.to_pylist(), key=str)
    printed = capsys.readouterr().out
    assert "3 clusters: " in printed and "--data.order as_is --data.cluster_key cluster" in printed


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_the_same_command_again_changes_nothing_and_another_is_refused(prepared, capsys, suffix):
    table = read_table(prepared)
    write_table(with_column(table, "pass_count", [1] * table.num_rows, pa.int32()), prepared)
    order_again = functools.partial(run, prepared, suffix=suffix)
    output = order_again("--by", "topic")
    before = output.read_bytes(), output.stat().st_mtime_ns
    order_again("--by", "topic")
    assert (output.read_bytes(), output.stat().st_mtime_ns) == before
    assert "exists already" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="holds something else: name another file, or replace it with --force"):
        order_again("--by", "shuffle")
    assert output.read_bytes() == before[0]
    order_again("--by", "shuffle", "--force")
    assert output.read_bytes() != before[0]


def test_pass_rates_out_of_range_or_missing_are_dropped_and_counted(prepared, capsys):
    ordered = read_table(run(prepared, "--by", "difficulty", "--min_pass_rate", 0.05, "--max_pass_rate", 0.95))
    rates = ordered["pass_rate"].to_pylist()
    assert rates == sorted(rates, reverse=True) and min(rates) >= 0.05 and max(rates) <= 0.95
    printed = capsys.readouterr().out
    for line in (
        "2 rows without a pass rate",
        "2 rows with a pass rate below 0.05",
        "2 rows with a pass rate above 0.95",
    ):
        assert f"{line} are dropped" in printed
    assert ordered.num_rows == 34 and "pass rates along the file" in printed


def test_pass_rates_filter_any_order_and_the_limits_are_kept(prepared):
    assert read_table(run(prepared, "--by", "difficulty")).num_rows == 38  # all that have one, 0 and 1 among them
    prepared.with_name("ordered.parquet").unlink()
    assert read_table(run(prepared, "--by", "topic", "--min_pass_rate", 0.5)).num_rows == 19


@pytest.mark.parametrize(
    ("rates", "found"), [([1.0, 1000.0], "1 to 1000, not 0 to 1"), (["a", "b"], "string, not numbers")]
)
def test_a_column_of_other_numbers_or_texts_is_refused(tmp_path, rates, found):
    write_table(pa.table({"id": ["a", "b"], "prompt": ["p", "q"], "pass_rate": rates}), tmp_path / "set.parquet")
    with pytest.raises(SystemExit, match=f"'pass_rate' .*{found}"):
        run(tmp_path / "set.parquet", "--by", "difficulty")


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--by", "topic", "--data.cluster_key", "subject"], "no column 'subject'.*--data.cluster_key names another"),
        (["--by", "difficulty", "--min_pass_rate", "0.9", "--max_pass_rate", "0.1"], "--min_pass_rate 0.9"),
        (["--by", "difficulty", "--min_pass_rate", "0.99999", "--max_pass_rate", "0.99999"], "no row is left"),
    ],
)
def test_mistakes_are_named(prepared, flags, message):
    with pytest.raises(SystemExit, match=message):
        run(prepared, *flags)
    assert not prepared.with_name("ordered.parquet").exists()


def test_a_training_set_of_other_columns_is_ordered_without_ids(prepared, capsys):
    table = read_table(prepared).drop_columns(["id"]).rename_columns(["question", "gold", "cluster", "pass_rate"])
    write_table(table, prepared)
    with pytest.raises(SystemExit, match=r"no column 'prompt'.*--data.input_key names another"):
        run(prepared, "--by", "shuffle")
    first = read_table(run(prepared, "--by", "shuffle", "--data.input_key", "question", "--data.label_key", "gold"))
    assert sorted(first["question"].to_pylist()) == sorted(table["question"].to_pylist()) and first != table
    assert "--data.input_key question --data.label_key gold" in capsys.readouterr().out


def test_the_input_is_never_the_output(prepared):
    before = prepared.read_bytes()
    with pytest.raises(SystemExit, match="is the input"):
        main(["order", "--input", str(prepared), "--output", str(prepared), "--by", "topic", "--force"])
    assert prepared.read_bytes() == before


def test_a_missing_column_says_which_command_makes_it(tmp_path):
    path = tmp_path / "train.jsonl"
    write_table(pa.table({"id": ["a"], "prompt": ["q"]}), path)
    for by, command in (("topic", "topics"), ("difficulty", "difficulty")):
        with pytest.raises(SystemExit, match=f"`openrlhf-ebpo data {command}` makes it"):
            run(path, "--by", by)


def test_rows_without_a_cluster_are_an_error():
    table = pa.table({"cluster": ["a", None]})
    with pytest.raises(UsageError, match=r"1 rows .*'cluster'"):
        order.clusters_of(table, argparse.Namespace(input="x.parquet", **{"data.cluster_key": "cluster"}))


def test_every_random_choice_depends_on_the_seed():
    names, clusters = ids(120), [f"topic {i % 12}" for i in range(120)]
    orders = {tuple(order.order_rows(names, seed, clusters)) for seed in range(4)}
    topics = {tuple(dict.fromkeys(clusters[i] for i in places)) for places in orders}
    inside = {tuple(i for i in places if clusters[i] == "topic 0") for places in orders}
    assert len(orders) == len(topics) == len(inside) == 4
    shuffles = {tuple(order.order_rows(names, seed)) for seed in range(4)}
    rates = np.repeat([0.0, 1.0], 60)
    by_rate = [order.order_rows(names, seed, rates=rates) for seed in range(4)]
    assert len(shuffles) == len(set(map(tuple, by_rate))) == 4
    assert all(set(each[:60]) == set(range(60, 120)) for each in by_rate), "equal pass rates are mixed, no others"
