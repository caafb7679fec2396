"""A figure as text and numbers: a CSV file of what is drawn, and a paragraph of Markdown."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable
from pathlib import Path

from openrlhf_ebpo.files import replace_file
from paper.catalogue import REPORTED, Content, Figure, Size

FIGURE_COLUMNS = ("panel", "series", "x_label", "x", "y_label", "mean", "low", "high", "seeds", "source")
IMAGES = Path("images") / "figures"  # below docs/


def write_csv(path: Path, content: Content) -> None:
    """A row for each point that is drawn; low and high are empty for what the authors report."""
    with replace_file(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIGURE_COLUMNS)
        for panel in content.panels:
            for series in panel.series:
                seeds = "" if series.reported else len(series.values)
                for x, found in zip(series.x, series.intervals(), strict=True):
                    ends = [f"{found.mean + s * found.half:.6g}" for s in (-1, 1)]
                    ends = ends if len(series.values) > 1 else ["", ""]
                    names = (panel.title, series.label, panel.x_label, x, panel.y_label)
                    source = REPORTED if series.reported else "measured here"
                    writer.writerow([*names, f"{found.mean:.6g}", *ends, seeds, source])


def paragraph(name: str, figure: Figure, content: Content, size: Size) -> str:
    """The paper's claim, the setting, the findings, and if they agree."""
    verdicts = [f" {each.verdict.value}" if each.verdict else "" for each in content.findings]
    found = [f"- {each.text}.{verdict}" for each, verdict in zip(content.findings, verdicts, strict=True)]
    command = f"python research/figures.py --only {name} --{size.name}"
    return f"""## {figure.title}

![{figure.alt}]({name}.png)

**The paper** (reported by the authors, not measured here): {figure.claim}.

**What was run** (`{command}`, {size.seeds} seeds): {figure.setting.format(**size._asdict())}

**What came out**:

{chr(10).join(found)}

All numbers that are drawn: [{name}.csv]({name}.csv)."""


def caption(size: Size) -> str:
    intervals = "bands and error bars: 95 % intervals over seeds"
    return f"{size.seeds} seeds; {intervals}. python research/figures.py --{size.name}"


def copy_to_docs(output: Path, names: Iterable[str], docs: Path) -> str:
    """Copy pictures and tables; return the paragraphs, with links to the copies."""
    (docs / IMAGES).mkdir(parents=True, exist_ok=True)
    paragraphs = []
    for path in (output / f"{name}.md" for name in names if (output / f"{name}.md").exists()):
        for kind in ("png", "csv"):
            shutil.copy(path.with_suffix(f".{kind}"), docs / IMAGES)
        paragraphs.append(path.read_text().replace(f"]({path.stem}.", f"](../{IMAGES}/{path.stem}."))
    return "\n".join(paragraphs)
