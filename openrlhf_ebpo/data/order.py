"""Put the prompts in the order of training; the rows themselves do not change.

  --by topic        rows of a cluster stand together, in random order; the clusters follow each other in random order
  --by difficulty   easy to hard: from the highest pass rate to the lowest; equal ones in random order
  --by shuffle      random order

  openrlhf-ebpo data order --input topics.parquet --by topic --output ordered.parquet
  openrlhf-ebpo data order --input difficulty.parquet --by difficulty --min_pass_rate 0.05 --max_pass_rate 0.95 \\
      --output ordered.parquet

The order depends on the seed and the ids alone, not on the order of the input. Adding rows keeps the relative order of
the others within a cluster. Train with `--data.order as_is`, or the prompts are shuffled.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from openrlhf_ebpo.command import command, one_line
from openrlhf_ebpo.data.output_report import training_command
from openrlhf_ebpo.data.training_tables import add_key_flags, check_output, ids_of, keys_of, read_table, write_table
from openrlhf_ebpo.errors import UsageError

PASS_RATE = "pass_rate"
CLUSTER_KEY = "data.cluster_key"
WIDTH = 2000  # characters of the clusters' names


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--input", required=True, metavar="FILE", help="prompts, in any form of --data.prompt_dataset")
    add("--output", required=True, metavar="FILE", help="the same rows in the new order, .parquet or .jsonl")
    add_key_flags(parser)
    add("--by", required=True, choices=("topic", "difficulty", "shuffle"), help="the order; see above")
    add("--seed", type=int, default=42, help="random seed of the order (default: %(default)s)")
    add(
        "--min_pass_rate",
        type=float,
        default=0.0,
        metavar="RATE",
        help="drop prompts with a lower pass rate; 0.05 drops those that are never solved (default: %(default)s)",
    )
    add(
        "--max_pass_rate",
        type=float,
        default=1.0,
        metavar="RATE",
        help="drop prompts with a higher pass rate; 0.95 drops those that are always solved (default: %(default)s)",
    )
    add(f"--{CLUSTER_KEY}", default="cluster", metavar="NAME", help="column with the topic (default: %(default)s)")
    add("--force", action="store_true", help="replace an output that holds something else")


def run(args: argparse.Namespace) -> None:
    check_output(args.output, args.input)
    low, high = args.min_pass_rate, args.max_pass_rate
    if not 0 <= low <= high <= 1:
        raise UsageError(f"--min_pass_rate {low:g}, --max_pass_rate {high:g}: rates from 0 to 1, the first no higher")
    needed = {keys_of(args)[0]: "--data.input_key"}
    needed |= {vars(args)[CLUSTER_KEY]: f"--{CLUSTER_KEY}"} if args.by == "topic" else {}
    needed |= {PASS_RATE: ""} if needs_rates(args) else {}
    table = read_table(args.input, needed)
    table, dropped = keep_in_range(table, args)
    ids = ids_of(table, keys_of(args)[0])
    clusters = clusters_of(table, args) if args.by == "topic" else None
    rates = rates_of(table) if args.by == "difficulty" else None
    ordered = table.take(pa.array(order_rows(ids, args.seed, clusters, rates), pa.int64()))
    save(ordered, Path(args.output), args.force)
    print(summary(ordered, dropped, args))


def order_rows(
    ids: Sequence[str], seed: int, clusters: Sequence[str] | None = None, rates: np.ndarray | None = None
) -> list[int]:
    """Return the places of the rows in random order; with clusters one cluster after the other, with rates (rows,)
    from the highest to the lowest."""
    places = sorted(range(len(ids)), key=lambda i: (random_key(seed, ids[i]), ids[i]))
    if clusters is not None:
        places.sort(key=lambda i: (random_key(seed, "cluster", clusters[i]), clusters[i]))
    if rates is not None:
        places.sort(key=lambda i: -rates[i])
    return places


def random_key(seed: int, *names) -> bytes:
    """Draw random bytes that depend on seed and names only, not on a library's generator."""
    return hashlib.sha256("\0".join(map(str, ("order", seed, *names))).encode()).digest()[:16]


def needs_rates(args: argparse.Namespace) -> bool:
    return args.by == "difficulty" or (args.min_pass_rate, args.max_pass_rate) != (0, 1)


def keep_in_range(table: pa.Table, args: argparse.Namespace) -> tuple[pa.Table, dict[str, int]]:
    """Return the rows whose pass rate is known and in range, and how many others there were, by reason.

    Raises:
        UsageError: none is left.
    """
    if not needs_rates(args):
        return table, {}
    rates, low, high = rates_of(table), args.min_pass_rate, args.max_pass_rate
    dropped = {
        "without a pass rate": np.isnan(rates),
        f"with a pass rate below {low:g}": rates < low,
        f"with a pass rate above {high:g}": rates > high,
    }
    keep = ~np.logical_or.reduce(list(dropped.values()))
    counts = {reason: int(mask.sum()) for reason, mask in dropped.items() if mask.any()}
    if not keep.any():
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        raise UsageError(f"--input {args.input}: no row is left ({reasons or 'it is empty'})")
    return table.filter(pa.array(keep)), counts


def rates_of(table: pa.Table) -> np.ndarray:
    """Return (rows,) float64, NaN for a missing one.

    Raises:
        UsageError: the column holds something else than rates.
    """
    try:
        rates = pc.cast(table[PASS_RATE], pa.float64()).to_numpy()
    except pa.ArrowException:
        raise UsageError(f"column {PASS_RATE!r} holds {table.schema.field(PASS_RATE).type}, not numbers") from None
    if ((rates < 0) | (rates > 1)).any():
        raise UsageError(f"column {PASS_RATE!r} holds {np.nanmin(rates):g} to {np.nanmax(rates):g}, not 0 to 1")
    return rates


def clusters_of(table: pa.Table, args: argparse.Namespace) -> list[str]:
    name = vars(args)[CLUSTER_KEY]
    missing = table[name].null_count
    if missing:
        raise UsageError(
            f"--input {args.input}: {missing} rows have no {name!r}; `openrlhf-ebpo data topics` gives every row one"
        )
    return [str(value) for value in table[name].to_pylist()]


def save(table: pa.Table, path: Path, force: bool) -> None:
    """Write the table; the same table at that place is left alone.

    Raises:
        UsageError: the file exists with other rows.
    """
    if path.exists() and not force:
        there = read_table(path, flag="--output")
        if there.to_pylist() != table.to_pylist():  # JSON lines have fewer types
            raise UsageError(f"--output {path} holds something else: name another file, or replace it with --force")
        print(f"{path} exists already, with the same rows in the same order")
        return
    write_table(table, path)


def summary(table: pa.Table, dropped: dict[str, int], args: argparse.Namespace) -> str:
    lines = [f"{table.num_rows:,} rows to {args.output}"]
    lines += [f"{count:,} rows {reason} are dropped" for reason, count in dropped.items()]
    if args.by == "topic":
        counts = Counter(clusters_of(table, args))  # in the order of their first row
        named = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
        lines.append(one_line(f"{len(counts)} clusters: {named}", WIDTH))
    if needs_rates(args):
        rates = rates_of(table)
        lines.append(f"pass rates along the file: {rates[0]:.2f} first, {rates[-1]:.2f} last, mean {rates.mean():.2f}")
    flags = ["--data.order as_is"]
    if (column := vars(args)[CLUSTER_KEY]) in table.column_names:
        flags.append(f"--{CLUSTER_KEY} {shlex.quote(column)}")
    return "\n".join([*lines, "", f"train on it:  {training_command(args.output, *flags, keys=keys_of(args))}"])


main = command("openrlhf-ebpo data order", __doc__, add_flags, run, extra="data")
