"""openrlhf-ebpo figures: the paper's analysis figures, made again on models that are small enough for many seeds."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.figures.catalogue import FULL, QUICK, Figure, Size, figures
from openrlhf_ebpo.figures.measured import measure

ABOUT = """Measure what the paper's analysis figures show, on a small network, a bandit and simulated prompts, and draw it.

For each figure DIR gets NAME.png, NAME.csv and NAME.md: what the paper says, what was run, what came out. What is
measured is kept in DIR/measured.jsonl, a line a unit of work: the same command goes on where it was interrupted, and
more seeds, --only and --full add to what is there. Nothing but --full starts Ray: that trains the figure real_stack
(three seeds) through OpenRLHF."""
NEEDED = ("matplotlib", "reasoning_gym", "scipy", "torch", "tqdm")
OF_THE_STACK = ("openrlhf", "ray", "deepspeed", "vllm")


def add_flags(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(figures())
    parser.add_argument("--only", nargs="+", type=known, metavar="NAME", help=f"these figures alone: {names}")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"default: {QUICK.seeds}, with --full {FULL.seeds}")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick",
        dest="size",
        action="store_const",
        const=QUICK,
        default=QUICK,
        help="minutes, in one process (the default)",
    )
    size.add_argument(
        "--full", dest="size", action="store_const", const=FULL, help="hours: more seeds, longer, and the real stack"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/figures"), metavar="DIR", help="default: runs/figures"
    )
    parser.add_argument("--force", action="store_true", help="measure anew; the old measured.jsonl is kept aside")


def known(name: str) -> str:
    if name not in (names := figures()):
        near = difflib.get_close_matches(name, names, n=1)
        advice = f"Did you mean {near[0]}?" if near else f"There are {', '.join(names)}"
        raise argparse.ArgumentTypeError(f"no such figure: {name}. {advice}")
    return name


def run(args: argparse.Namespace) -> None:
    size = args.size._replace(seeds=args.size.seeds if args.seeds is None else args.seeds)
    if size.seeds < 2:
        raise UsageError(f"--seeds is {size.seeds}; give 2 or more: an interval needs them")
    if args.output.exists() and not args.output.is_dir():
        raise UsageError(f"--output {args.output} is a file; name a directory")
    for package in NEEDED:  # told before hours of measuring, not after
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
    wanted = chosen(args.only, size)
    check_stack([name for name, figure in wanted.items() if figure.real])
    make(wanted, size, args.output, args.force)


def chosen(only: list[str] | None, size: Size) -> dict[str, Figure]:
    """
    Raises:
        UsageError: a figure that needs --full.
    """
    every = figures()
    for name in only or ():
        if every[name].real and size.name != FULL.name:
            raise UsageError(f"--only {name} trains on the real stack, for minutes a seed: add --full")
    return {name: f for name, f in every.items() if (name in only if only else not f.real or size.name == FULL.name)}


def check_stack(real: list[str]) -> None:
    """
    Raises:
        UsageError: figures of the real stack, which is not here.
    """
    missing = [package for package in OF_THE_STACK if real and importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(
            f"{', '.join(real)} trains through OpenRLHF, and {', '.join(missing)} is not installed: use the environment that "
            "scripts/quickstart.sh makes, or name other figures with --only"
        )


def make(wanted: dict[str, Figure], size: Size, output: Path, force: bool) -> None:
    """Measure and write them one by one, so that the first is there early."""
    import torch

    from openrlhf_ebpo.figures.draw import draw
    from openrlhf_ebpo.figures.page import caption, paragraph, write_csv, write_page
    from openrlhf_ebpo.files import write_text

    torch.set_num_threads(1)  # of so small a network more would wait for each other
    for name, figure in wanted.items():
        own = figure.fewer(size)
        measured = measure(figure.jobs(own), own.seeds, output, force)
        force = False
        content = figure.content(measured, own)
        draw(output / f"{name}.png", figure.title, content.panels, caption(own))
        write_csv(output / f"{name}.csv", content)
        write_text(output / f"{name}.md", paragraph(name, figure, content, own) + "\n")
        print(f"{output / name}.png, .csv, .md", flush=True)
    write_page(output, figures())


main = command("openrlhf-ebpo figures", ABOUT, add_flags, run, extra="figures")

if __name__ == "__main__":
    main()
