"""openrlhf-ebpo hub: models, priors, runs and results to and from the Hugging Face Hub.

A training pushes by itself with --hub.repo owner/name (`openrlhf-ebpo train --help`); these commands do the rest.
The token comes from HF_TOKEN or `hf auth login`, never from a flag; another Hub than huggingface.co from HF_ENDPOINT.

  openrlhf-ebpo hub push out/run                                          finish what a training has queued
  openrlhf-ebpo hub push out/run --repo me/model --dry_run                list what would go
  openrlhf-ebpo hub pull me/model model --revision step-000020            bring one step back
  openrlhf-ebpo hub push-run out/run --repo me/my-run                     publish the record of a run
  openrlhf-ebpo hub COMMAND --help                                        all about a command
"""

from __future__ import annotations

import argparse
import importlib
import sys

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.redact import redacted_text

COMMANDS = {
    "push": ("openrlhf_ebpo.hub.push_command", "a run's models; finishes what a training has queued"),
    "pull": ("openrlhf_ebpo.hub.pull", "a model and its prior into a folder, checked file by file"),
    "push-run": ("openrlhf_ebpo.hub.run_data", "a run directory (metrics, rollouts, evaluation) as a data set"),
    "push-results": ("openrlhf_ebpo.hub.results", "evaluation results, as a data set and into the model card"),
    "deploy-space": ("openrlhf_ebpo.hub.space", "the app that shows runs, as a Space"),
}


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        "openrlhf-ebpo hub", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, summary) in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    chosen, rest = parser.parse_known_args(argv[:1])[0].command, argv[1:]
    try:
        module = importlib.import_module(COMMANDS[chosen][0])
        command_parser = argparse.ArgumentParser(
            f"openrlhf-ebpo hub {chosen}",
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_flags(command_parser)
        run(module, command_parser.parse_args(rest))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("openrlhf"):
            raise
        sys.exit(f"error: {error.name} is not installed: pip install 'openrlhf_ebpo[hub]'")


def run(module, args: argparse.Namespace) -> None:
    from openrlhf_ebpo.hub.client import HubError

    try:
        module.run(args)
    except (UsageError, HubError, OSError) as error:  # OSError: the disk is full, or refuses a file
        sys.exit("".join(f"error: {line}\n" for line in redacted_text(str(error)).splitlines()).rstrip())
    except KeyboardInterrupt:
        sys.exit("interrupted; repeat the command to go on")


if __name__ == "__main__":
    main()
