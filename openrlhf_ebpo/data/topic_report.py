"""What `data topics` tells about its output: OUTPUT.report.json, a printed table, a picture."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import replacing, write_json

EXAMPLES = 2  # per cluster
SHOWN = 30  # clusters in the table and in the picture


def report_path(output: str | Path) -> Path:
    return Path(f"{output}.report.json")


def finished(output: str | Path, settings: dict) -> dict | None:
    """The report of an output that was made with these settings; None where there is no output.

    Raises:
        UsageError: the output was made otherwise.
    """
    if not Path(output).exists():
        return None
    try:
        report = json.loads(report_path(output).read_text())
    except FileNotFoundError:
        why = f"and {report_path(output).name}, which would tell how it was made, is not"
    else:
        before = report["settings"]
        if before == settings:
            return report
        changed = [name for name in {**before, **settings} if before.get(name) != settings.get(name)]
        why = "made with " + ", ".join(f"{name} {before.get(name)}, not {settings.get(name)}" for name in changed)
    raise UsageError(f"--output {output} is there already, {why}: name another file, or --force replaces it")


def remove(output: str | Path) -> None:
    report_path(output).unlink(missing_ok=True)


def write(output: str | Path, report: dict) -> None:
    write_json(report_path(output), report)


def summary(topics: list[str], texts: list[str], order: Iterable[int]) -> list[dict]:
    """One row a cluster, the largest first: cluster, size, share, examples (the first that `order` comes to)."""
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


def show(report: dict) -> None:
    """Print the table."""
    clusters = report["clusters"]
    quality = f", silhouette {report['silhouette']:.3f}" if report.get("silhouette") is not None else ""
    print(
        f"\n{report['rows']:,} questions, {len(clusters):,} clusters{quality}\n\n  size   share  cluster, with examples"
    )
    for row in clusters[:SHOWN]:
        print(f"{row['size']:>6,}  {row['share']:>5.1%}  {row['cluster']}")
        for example in row["examples"]:
            print(f"{'':>17}{example if len(example) <= 90 else example[:86] + ' ...'}")
    if rest := clusters[SHOWN:]:
        print(f"{sum(row['size'] for row in rest):>6,}         in {len(rest):,} smaller clusters")


def plot(output: str | Path, report: dict) -> None:
    """Write OUTPUT.png: one bar per cluster."""
    from matplotlib.figure import Figure

    rows = report["clusters"][:SHOWN][::-1]
    figure = Figure(figsize=(9, 1.2 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    names = [textwrap.shorten(row["cluster"], 60, placeholder=" ...").replace("$", r"\$") for row in rows]
    bars = axes.barh(range(len(rows)), [row["size"] for row in rows], color="#1f4e8c")
    axes.set_yticks(range(len(rows)), names, fontsize=9)
    axes.bar_label(bars, [f"{row['size']:,}  ({row['share']:.1%})" for row in rows], padding=4, fontsize=8)
    axes.margins(x=0.15)
    axes.set_xlabel("questions", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    hidden = len(report["clusters"]) - len(rows)
    axes.set_title(
        f"{report['rows']:,} questions by topic" + (f" ({hidden:,} smaller clusters not shown)" if hidden else "")
    )
    path = f"{output}.png"
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    print(f"\npicture: {path}")
