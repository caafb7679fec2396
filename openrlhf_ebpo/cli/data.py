"""openrlhf-ebpo data: training data in four steps, each reads and writes Parquet or JSON lines.

prepare -> topics and/or difficulty -> order -> openrlhf-ebpo train --data.order as_is
"""

from __future__ import annotations

import argparse
import importlib
import sys

from openrlhf_ebpo.errors import UsageError

COMMANDS = {
    "prepare": "clean a data set: drop duplicates and conflicting answers, split off a validation set",
    "topics": "give every prompt a topic: by sentence embeddings, by a column, or by asking an LLM",
    "difficulty": "measure the pass rate of a model on every prompt",
    "order": "put the prompts in training order: clustered by topic, or easy to hard",
}


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        "openrlhf-ebpo data", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    chosen, rest = parser.parse_known_args(argv[:1])[0].command, argv[1:]
    try:
        module = importlib.import_module(f"openrlhf_ebpo.data.{chosen}")
    except ModuleNotFoundError as error:
        if error.name.startswith("openrlhf"):
            raise
        sys.exit(f"error: {error.name} is not installed: pip install 'openrlhf_ebpo[data]'")
    parser = argparse.ArgumentParser(
        f"openrlhf-ebpo data {chosen}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_flags(parser)
    args = parser.parse_args(rest)
    try:
        module.run(args)
    except UsageError as error:
        sys.exit("".join(f"error: {line}\n" for line in str(error).splitlines()).rstrip())
    except KeyboardInterrupt:
        sys.exit("interrupted; repeat the command to go on")


if __name__ == "__main__":
    main()
