"""Give every question a topic: the same rows with one more column, `cluster`.

  --method embeddings   groups of similar questions: sentence embeddings and K-means. Free, takes minutes, needs no GPU.
  --method column       a column that is there already, such as a subject or a source, becomes the topic.
  --method llm          an LLM behind an OpenAI-compatible endpoint picks one of the EBPO paper's nine topics.

The next step uses the topics: `openrlhf-ebpo data order` puts questions of one topic next to each other, so that a
rollout batch, and the prior estimated from it, is about one kind of question. The paper used the nine topics of an LLM;
a later version found embeddings with K = 10 as good.

  openrlhf-ebpo data topics --input train.parquet --output topics.parquet
  openrlhf-ebpo data topics --input train.parquet --output topics.parquet --text prompt --umap 5 --seed 42 --sort
  openrlhf-ebpo data topics --input train.parquet --output topics.parquet --method column --column ability
  OPENAI_API_KEY=... openrlhf-ebpo data topics --input train.parquet --output topics.parquet --method llm \\
      --endpoint https://api.openai.com/v1 --llm gpt-4.1-mini --price_in 0.4 --price_out 1.6

Beside the output: OUTPUT.report.json (settings, sizes, how well the clusters separate) and, with --plot, OUTPUT.png.
A job that was killed goes on when its command is repeated: embeddings are kept in the folder embeddings-cache beside the
output (another --k then takes seconds), an LLM's answers in OUTPUT.answers.jsonl, so no answer is paid for twice.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from openrlhf_ebpo.command import command
from openrlhf_ebpo.data import embedding_topics, llm_topics, topic_names, topic_report
from openrlhf_ebpo.data.table import check_columns, check_suffix, read_table, with_column, write_table
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.progress import file_identity

UNKNOWN = llm_topics.UNKNOWN


def add_flags(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group("files (.parquet or .jsonl)")
    files.add_argument("--input", required=True, help="prepared questions")
    files.add_argument(
        "--text",
        choices=("question", "prompt"),
        default="question",
        help="what is read: question (prompt where there is none), or prompt, with the instruction that the data set puts "
        "around each question, as the authors' code does (default: %(default)s)",
    )
    files.add_argument("--output", required=True, help="the same rows with the column cluster")
    files.add_argument(
        "--sort",
        action="store_true",
        help="write the rows topic by topic, the largest first: an order for --data.order as_is",
    )
    files.add_argument("--plot", action="store_true", help="also draw the sizes of the clusters: OUTPUT.png")
    files.add_argument(
        "--force",
        action="store_true",
        help="make an output that is there again; an LLM's answers are kept, and only what stayed 'unknown' is asked again",
    )
    parser.add_argument(
        "--method", choices=("embeddings", "column", "llm"), default="embeddings", help="(default: %(default)s)"
    )

    group = parser.add_argument_group("--method embeddings")
    group.add_argument(
        "--model",
        help=f"a sentence-transformers model: a Hub name or a folder (default: {embedding_topics.MODEL}, from the "
        f"package {embedding_topics.PACKAGE} where that is installed, from the Hub otherwise)",
    )
    group.add_argument("--k", type=int, default=10, help="number of clusters (default: %(default)s)")
    group.add_argument("--seed", type=int, default=0, help="of K-means and UMAP (default: %(default)s)")
    group.add_argument(
        "--umap",
        type=_positive,
        nargs="?",
        const=embedding_topics.DIMENSIONS,
        metavar="D",
        help=f"bring the embeddings to D dimensions ({embedding_topics.DIMENSIONS}) with UMAP before K-means, as the authors' "
        f"code does, and not the paper; needs {embedding_topics.UMAP_PACKAGE}",
    )

    group = parser.add_argument_group("--method column")
    group.add_argument("--column", help="the column that becomes the topic; empty values become 'unknown'")

    group = parser.add_argument_group("--method llm (the key for the endpoint is read from OPENAI_API_KEY)")
    group.add_argument("--endpoint", help="address of the API, such as http://localhost:8000/v1 for vLLM")
    group.add_argument("--llm", help="name of the model at the endpoint")
    group.add_argument(
        "--request",
        type=_json_object,
        default={"temperature": 0, "max_tokens": 2048},
        metavar="JSON",
        help='more fields of each request (default: {"temperature": 0, "max_tokens": 2048}; OpenAI\'s reasoning models '
        'want {"max_completion_tokens": 2048})',
    )
    group.add_argument("--price_in", type=float, help="price of a million tokens of the prompt, to show the cost first")
    group.add_argument("--price_out", type=float, help="price of a million tokens of the answer")
    group.add_argument("--yes", action="store_true", help="do not ask whether the cost is all right")
    group.add_argument("--parallel", type=_positive, default=8, help="requests at a time (default: %(default)s)")
    group.add_argument(
        "--tries",
        type=_positive,
        default=3,
        help="how often a question is asked until the answer is one of the nine topics; then it is 'unknown' "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--retries",
        type=int,
        default=8,
        help="how often a request is repeated, with growing pauses, when the server is busy, down or slow "
        "(default: %(default)s)",
    )
    group.add_argument("--timeout", type=float, default=120, help="seconds for one request (default: %(default)s)")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _json_object(text: str) -> dict:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object, like {{}}")
    return value


def run(args: argparse.Namespace) -> None:
    """Give every row of the input a topic, and write table and report.

    Raises:
        UsageError: about a flag, a file, a column, the model or the endpoint.
    """
    _check_flags(args)
    table = read_table(args.input, {args.column: "--column"} if args.method == "column" else ())
    texts = questions(table, args.input, args.text)
    settings = {"input": file_identity(args.input), "method": args.method, **SETTINGS[args.method](args)}
    settings |= {name: value for name, value in {"text": args.text, "sort": args.sort}.items() if value not in PLAIN}
    report = None if args.force else topic_report.finished(args.output, settings)
    if report:
        print(f"{args.output} is done already with these settings; --force makes it again")
    else:
        topics, examples, facts = METHODS[args.method](table, texts, args)
        clusters = topic_report.summary(topics, texts, examples)
        report = {"settings": settings, "rows": len(topics), **facts, "clusters": clusters}
        topic_report.remove(args.output)  # never beside an output that it does not describe
        table = with_column(table, "cluster", topics, pa.string())
        write_table(table.take(by_size(topics)) if args.sort else table, args.output)
        topic_report.write(args.output, report)
    topic_report.show(report)
    if args.plot:
        topic_report.plot(args.output, report)


def by_size(topics: list[str]) -> list[int]:
    """Places of the rows topic by topic, the largest first; within one as they are."""
    sizes = Counter(topics)
    return sorted(range(len(topics)), key=lambda row: (-sizes[topics[row]], topics[row]))


def questions(table: pa.Table, path: str, text: str = "question") -> list[str]:
    """The column question; prompt where the table, or a row, has none, or where that is asked for.

    Raises:
        UsageError: no rows, neither column, or a value that is no text.
    """
    if not len(table):
        raise UsageError(f"--input {path} has no rows")
    wanted = ("question", "prompt") if text == "question" else ("prompt",)
    found = [name for name in wanted if name in table.column_names]
    if not found:
        check_columns(table.column_names, [text], path)
    values = table[found[0]].to_pylist()
    if len(found) == 2 and None in values:
        values = [p if q is None else q for q, p in zip(values, table["prompt"].to_pylist(), strict=True)]
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise UsageError(f"--input {path}, row {row + 1}: {found[0]} is {value!r:.60}; text is needed")
    return values


def _check_flags(args: argparse.Namespace) -> None:
    check_suffix(args.output, "--output")
    if Path(args.output).absolute() == Path(args.input).absolute():
        raise UsageError(f"--output {args.output} is the input; name another file")
    owners = {"column": ("column",), "endpoint": ("llm",), "llm": ("llm",), "model": ("embeddings",)}
    owners["umap"] = ("embeddings",)
    for flag, methods in owners.items():
        if getattr(args, flag) and args.method not in methods:
            raise UsageError(f"--{flag} belongs to --method {methods[0]}, not to --method {args.method}")
    needed = {"column": ("column",), "llm": ("endpoint", "llm"), "embeddings": ()}[args.method]
    for flag in needed:
        if not getattr(args, flag):
            raise UsageError(f"--method {args.method} needs --{flag}")
    if args.endpoint and not args.endpoint.startswith(("http://", "https://")):
        raise UsageError(f"--endpoint {args.endpoint}: an address begins with http:// or https://")
    if args.k < 1:
        raise UsageError(f"--k {args.k}: at least 1")
    if args.umap:
        embedding_topics.check_umap()


def by_embeddings(table: pa.Table, texts: list[str], args: argparse.Namespace) -> Result:
    distinct = len(set(texts))
    if args.k > distinct:
        raise UsageError(f"--k {args.k}: {args.input} has {distinct} different questions; {distinct} is the most")
    if args.umap and distinct <= (least := max(embedding_topics.NEIGHBOURS, args.umap + 1)):
        raise UsageError(
            f"--umap {args.umap}: {args.input} has {distinct} different questions; more than {least} are needed"
        )
    model = embedding_topics.model_path(args.model)
    print(f"embeddings: {model}", flush=True)
    vectors = embedding_topics.embed(texts, model, Path(args.output).parent / "embeddings-cache")
    if args.umap:
        vectors = embedding_topics.reduced(vectors, args.umap, args.seed)
    labels, distances, quality = embedding_topics.kmeans(vectors, args.k, args.seed)
    names = topic_names.names(texts, labels)
    return [names[label] for label in labels], np.argsort(distances, kind="stable"), quality


def by_column(table: pa.Table, texts: list[str], args: argparse.Namespace) -> Result:
    column = table[args.column]
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        raise UsageError(f"--column {args.column} holds {column.type}; text or numbers can name a topic")
    values = ["" if value is None else str(value).strip() for value in column.to_pylist()]
    return [value or UNKNOWN for value in values], range(len(texts)), {}


def by_llm(table: pa.Table, texts: list[str], args: argparse.Namespace) -> Result:
    answers = Path(f"{args.output}.answers.jsonl")
    topics, usage = llm_topics.choose_topics(texts, args, answers)
    spent = llm_topics.price(usage["prompt_tokens"], usage["completion_tokens"], args)
    print(
        "in all: {requests:,} requests, {prompt_tokens:,} tokens in, {completion_tokens:,} out".format(**usage) + spent
    )
    if unknown := topics.count(UNKNOWN):
        print(
            f"{unknown:,} questions are {UNKNOWN!r}: no answer was one of the topics; {answers} has the last ones "
            "(empty ones: raise max_tokens in --request). --force asks these questions again, and no others"
        )
    return topics, range(len(texts)), {"usage": usage, "unknown": unknown}


# topics; rows in the order in which they are good examples of their topic; facts for the report
Result = tuple[list[str], Iterable[int], dict]

METHODS = {"embeddings": by_embeddings, "column": by_column, "llm": by_llm}

PLAIN = ("question", False)  # --text and --sort as they are by default: not in a report

# What an output depends on besides the input.
SETTINGS = {
    "embeddings": lambda args: {
        "model": args.model or embedding_topics.MODEL,
        "k": args.k,
        "seed": args.seed,
        **({"umap": args.umap} if args.umap else {}),
    },
    "column": lambda args: {"column": args.column},
    "llm": lambda args: {
        "llm": args.llm,
        "endpoint": llm_topics.sanitize(args.endpoint),
        "request": args.request,
        "tries": args.tries,
    },
}


main = command("openrlhf-ebpo data topics", __doc__, add_flags, run, extra="data")
