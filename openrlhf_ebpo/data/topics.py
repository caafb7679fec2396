"""Give every question a topic: the same rows with one more column, `cluster`.

Similar questions form a topic: sentence embeddings and K-means. It takes minutes and needs no GPU. The next step uses
the topics: `openrlhf-ebpo data order` puts questions of one topic next to each other, so that a rollout batch, and the
prior estimated from it, is about one kind of question.

  openrlhf-ebpo data topics --input train.parquet --output topics.parquet

This is the method of the EBPO paper's later version (K = 10). Topics from elsewhere, such as a subject or an LLM's
answers, need no step: `data order --by topic --data.cluster_key NAME` takes any column.

OUTPUT.report.json has settings, sizes and examples. A killed job leaves nothing: repeat the command.
"""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from openrlhf_ebpo.command import command, one_line
from openrlhf_ebpo.data import embedding_topics, output_report, topic_names
from openrlhf_ebpo.data.training_tables import (
    check_columns,
    check_suffix,
    identity,
    read_table,
    with_column,
    write_table,
)
from openrlhf_ebpo.errors import UsageError

EXAMPLES = 2  # per cluster
MAX_ROWS, WIDTH = 30, 90  # clusters in the table; characters of an example


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--input", required=True, metavar="FILE", help="prepared questions, in any form of --data.prompt_dataset")
    add("--output", required=True, metavar="FILE", help="the same rows with the column cluster, .parquet or .jsonl")
    add(
        "--model",
        default=embedding_topics.MODEL,
        help=f"a sentence-transformers model: a Hub name or a folder (default: %(default)s, from the package "
        f"{embedding_topics.PACKAGE} if that is installed)",
    )
    add("--k", type=int, default=10, help="number of clusters (default: %(default)s)")
    add("--seed", type=int, default=0, help="of K-means (default: %(default)s)")
    add("--force", action="store_true", help="replace an existing output")


def run(args: argparse.Namespace) -> None:
    """Give every row of the input a topic, and write table and report.

    Raises:
        UsageError: about a flag, a file, a column or the model.
    """
    check_flags(args)
    table = read_table(args.input)
    texts = questions(table, args.input)
    settings = settings_of(args)
    found = None if args.force else output_report.finished(args.output, settings)
    if found:
        print(f"{args.output} is done already with these settings; --force makes it again")
    else:
        topics, examples = find_topics(texts, args)
        found = {"settings": settings, "rows": len(topics), "clusters": summary(topics, texts, examples)}
        table = with_column(table, "cluster", topics, pa.string())
        with output_report.replaced(args.output, found):
            write_table(table, args.output)
    print(as_text(found))


def settings_of(args: argparse.Namespace) -> dict:
    """Collect the settings that determine the result, for its report."""
    return {"input": identity(args.input), **{name: getattr(args, name) for name in ("model", "k", "seed")}}


def check_flags(args: argparse.Namespace) -> None:
    check_suffix(args.output, "--output")
    if Path(args.output).absolute() == Path(args.input).absolute():
        raise UsageError(f"--output {args.output} is the input; name another file")
    if args.k < 1:
        raise UsageError(f"--k {args.k}: at least 1")


def questions(table: pa.Table, path: str) -> list[str]:
    """Return the column question; prompt where the table, or a row, has none.

    Raises:
        UsageError: no rows, neither column, or a value that is not text.
    """
    if not len(table):
        raise UsageError(f"--input {path} has no rows")
    found = [name for name in ("question", "prompt") if name in table.column_names]
    if not found:
        check_columns(table.column_names, ["question"], path)
    values = table[found[0]].to_pylist()
    if len(found) == 2 and None in values:
        values = [p if q is None else q for q, p in zip(values, table["prompt"].to_pylist(), strict=True)]
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise UsageError(f"--input {path}, row {row + 1}: {found[0]} is {value!r:.60}; text is needed")
    return values


def find_topics(texts: list[str], args: argparse.Namespace) -> tuple[list[str], Iterable[int]]:
    """Return the topic of each text, and the texts' places, the nearest to the centre of its topic first.

    Raises:
        UsageError: too few different questions, or the model cannot be loaded.
    """
    distinct = len(set(texts))
    if args.k > distinct:
        raise UsageError(f"--k {args.k}: {args.input} has {distinct} different questions; {distinct} is the most")
    vectors = embedding_topics.embed(texts, args.model)
    labels, distances = embedding_topics.kmeans(vectors, args.k, args.seed)
    names = topic_names.names(texts, labels)
    return [names[label] for label in labels], np.argsort(distances, kind="stable")


def summary(topics: list[str], texts: list[str], order: Iterable[int]) -> list[dict]:
    """Make one row a cluster, the largest first: cluster, size, share, examples (the first that `order` comes to)."""
    examples: dict[str, list[str]] = {}
    for row in order:
        chosen = examples.setdefault(topics[row], [])
        if len(chosen) < EXAMPLES and texts[row] not in chosen:
            chosen.append(texts[row])
    return [
        {
            "cluster": topic,
            "size": size,
            "share": size / len(topics),
            "examples": [textwrap.shorten(text, 300, placeholder=" ...") for text in examples[topic]],
        }
        for topic, size in sorted(Counter(topics).items(), key=lambda item: (-item[1], item[0]))
    ]


def as_text(found: dict) -> str:
    clusters = found["clusters"]
    lines = [f"{found['rows']:,} questions, {len(clusters):,} clusters", "", "  size   share  cluster, with examples"]
    for row in clusters[:MAX_ROWS]:
        lines.append(f"{row['size']:>6,}  {row['share']:>5.1%}  {row['cluster']}")
        lines += [f"{'':>17}{one_line(text, WIDTH)}" for text in row["examples"]]
    if rest := clusters[MAX_ROWS:]:
        lines.append(f"{sum(row['size'] for row in rest):>6,}         in {len(rest):,} smaller clusters")
    return "\n".join(["", *lines])


main = command("openrlhf-ebpo data topics", __doc__, add_flags, run, extra="data")
