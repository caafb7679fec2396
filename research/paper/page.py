"""A figure in words and numbers: a CSV file of what is drawn, and a paragraph of Markdown."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable
from pathlib import Path

from openrlhf_ebpo.files import replacing, write_text
from paper.catalogue import REPORTED, Content, Figure, Size

COLUMNS = ("panel", "series", "x_label", "x", "y_label", "mean", "low", "high", "seeds", "source")
PAGE = "figures.md"
IMAGES = Path("images") / "figures"  # below docs/
NOTE = (
    "Bands, error bars and ± are 95 % t-intervals over seeds. Smallest visible: the difference that so many seeds "
    "with so much noise would show four times in five."
)


def write_csv(path: Path, content: Content) -> None:
    """A row for each point that is drawn; low and high are empty for what the authors report."""
    with replacing(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for panel in content.panels:
            for series in panel.series:
                seeds = "" if series.reported else len(series.values)
                for x, found in zip(series.x, series.intervals(), strict=True):
                    ends = (
                        ["", ""] if len(series.values) < 2 else [f"{found.mean + s * found.half:.6g}" for s in (-1, 1)]
                    )
                    names = (panel.title, series.label, panel.x_label, x, panel.y_label)
                    source = REPORTED if series.reported else "measured here"
                    writer.writerow([*names, f"{found.mean:.6g}", *ends, seeds, source])


def paragraph(name: str, figure: Figure, content: Content, size: Size) -> str:
    """The paper's claim, the setting, the findings, and if they agree."""
    found = [
        " ".join([f"- {finding.text}.", *([finding.verdict.value] if finding.verdict else [])])
        for finding in content.findings
    ]
    return "\n\n".join(
        [
            f"## {figure.title}",
            f"![{figure.alt}]({name}.png)",
            f"**The paper** (reported by the authors, not measured here): {figure.claim}.",
            (
                f"**What was run** (`python research/figures.py --only {name} --{size.name}`, {size.seeds} seeds): "
                f"{setting(figure, size)}"
            ),
            "**What came out**:",
            "\n".join(found),
            f"All numbers that are drawn: [{name}.csv]({name}.csv).",
        ]
    )


def caption(size: Size) -> str:
    return (
        f"{size.seeds} seeds; bands and error bars: 95 % intervals over seeds. python research/figures.py --{size.name}"
    )


def setting(figure: Figure, size: Size) -> str:
    return figure.setting.format(**size._asdict())


def write_page(output: Path, names: Iterable[str]) -> None:
    """All figures that are there, in this order."""
    texts = [path.read_text().strip() for path in written(output, names)]
    write_text(output / PAGE, "\n\n".join(["# The paper's figures, made again on what is small", NOTE, *texts]) + "\n")


def copy_to_docs(output: Path, names: Iterable[str], docs: Path) -> str:
    """Copy pictures and tables; return the paragraphs, with links to the copies."""
    (docs / IMAGES).mkdir(parents=True, exist_ok=True)
    paragraphs = []
    for path in written(output, names):
        for kind in ("png", "csv"):
            shutil.copy(path.with_suffix(f".{kind}"), docs / IMAGES)
        paragraphs.append(path.read_text().replace(f"]({path.stem}.", f"](../{IMAGES}/{path.stem}."))
    return "\n".join(paragraphs)


def written(output: Path, names: Iterable[str]) -> list[Path]:
    return [path for name in names if (path := output / f"{name}.md").exists()]
