"""The paper's analysis figures, made again on models that are small enough for many seeds."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from lab.measured import measure
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from paper import baseline, dynamics, ordering, prior, real_stack
from paper.catalogue import FULL, QUICK, Figure, Size

ABOUT = """Measure what the paper's analysis figures show, on a small network, a bandit and simulated prompts, and
draw it.

For each figure DIR gets NAME.png, NAME.csv and NAME.md: what the paper says, what was run, what came out. What is
measured is kept in DIR/measured.jsonl, a line a unit of work: the same command resumes where it was interrupted, and
more seeds, --only and --full add to existing figures. Nothing but --full starts Ray: that trains the figure real_stack
(three seeds) through OpenRLHF."""
FIGURES: dict[str, Figure] = {
    **dynamics.FIGURES,
    **prior.FIGURES,
    **ordering.FIGURES,
    **baseline.FIGURES,
    **real_stack.FIGURES,
}
NEEDED = ("matplotlib", "reasoning_gym", "scipy", "torch", "tqdm")
OF_THE_STACK = ("openrlhf", "ray", "deepspeed", "vllm")
SCRIPTS = Path(__file__).parents[1] / "scripts"


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--only", nargs="+", choices=[*FIGURES], metavar="NAME", help=f"these figures alone: {', '.join(FIGURES)}")
    add("--seeds", type=int, metavar="N", help=f"default: {QUICK.seeds}, with --full {FULL.seeds}")
    size = parser.add_mutually_exclusive_group()
    lengths = {QUICK: "minutes, in one process (the default)", FULL: "hours: more seeds, longer, and in OpenRLHF"}
    for each, text in lengths.items():
        size.add_argument(f"--{each.name}", dest="size", action="store_const", const=each, default=QUICK, help=text)
    add("--output", type=Path, default=Path("runs/figures"), metavar="DIR", help="default: runs/figures")
    add("--force", action="store_true", help="measure all again; the old measured.jsonl is kept under another name")
    add("--docs", type=Path, metavar="DIR", help="also write into DIR/results/figures.md and DIR/images/figures/")


def run(args: argparse.Namespace) -> None:
    size = args.size._replace(seeds=args.size.seeds if args.seeds is None else args.seeds)
    if size.seeds < 2:
        raise UsageError(f"--seeds is {size.seeds}; give 2 or more: an interval needs them")
    if args.output.exists() and not args.output.is_dir():
        raise UsageError(f"--output {args.output} is a file; name a directory")
    figures = chosen(args.only, size)
    needed = (*NEEDED, *(OF_THE_STACK if any(figure.real for figure in figures.values()) else ()))
    if missing := [package for package in needed if importlib.util.find_spec(package) is None]:
        raise UsageError(f"{', '.join(missing)} is not installed: use the environment that scripts/setup.sh makes")
    make(figures, size, args.output, args.force)
    if args.docs:
        write_docs(args.output, args.docs)


def chosen(only: list[str] | None, size: Size) -> dict[str, Figure]:
    """
    Raises:
        UsageError: a figure that needs --full.
    """
    is_full = size.name == FULL.name
    for name in only or ():
        if FIGURES[name].real and not is_full:
            raise UsageError(f"--only {name} trains in OpenRLHF, for minutes a seed: add --full")
    return {name: each for name, each in FIGURES.items() if (name in only if only else not each.real or is_full)}


def make(figures: dict[str, Figure], size: Size, output: Path, force: bool) -> None:
    """Measure and write them one by one, so that the first is finished early."""
    import torch

    from lab.plots import draw
    from openrlhf_ebpo.files import write_text
    from paper.page import caption, paragraph, write_csv

    torch.set_num_threads(1)  # of so small a network more would wait for each other
    for name, figure in figures.items():
        own = figure.fewer(size)
        measured = measure(figure.jobs(own), range(own.seeds), output, force)
        force = False
        content = figure.content(measured, own)
        draw(output / f"{name}.png", figure.title, content.panels, caption(own))
        write_csv(output / f"{name}.csv", content)
        write_text(output / f"{name}.md", paragraph(name, figure, content, own) + "\n")
        print(f"{output / name}.png, .csv, .md", flush=True)


def write_docs(output: Path, docs: Path) -> None:
    """Put the figures of `output` between the two marks of docs/results/figures.md, and their files below
    docs/images/."""
    sys.path.append(str(SCRIPTS))
    from docs_tables import with_table

    from openrlhf_ebpo.files import write_text
    from paper.page import copy_to_docs

    page, by = docs / "results" / "figures.md", "python research/figures.py --docs docs"
    write_text(page, with_table(page.read_text(), "figures", page, copy_to_docs(output, FIGURES, docs), by))


main = command("python research/figures.py", ABOUT, add_flags, run, extra="dev")

if __name__ == "__main__":
    main()
