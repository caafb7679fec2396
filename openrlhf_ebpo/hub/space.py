"""Put the app that shows runs on the Hub, as a Space.

It sends app.py, README.md, requirements.txt, and this package as it is installed. The runs are data set repos made by
`openrlhf-ebpo hub push-run`; the Space reads their names from its variable EBPO_SPACE_RUNS. For private ones give the
Space, on its settings page, a secret EBPO_SPACE_HF_TOKEN: a token that may only read.

  openrlhf-ebpo hub deploy-space me/ebpo --runs me/run-a me/run-b --dry_run
  openrlhf-ebpo hub deploy-space me/ebpo --runs me/run-a me/run-b --public

Making a Gradio Space needs a paid plan of its owner (the Hub answers 402 otherwise). The same app runs on any machine,
without a plan: openrlhf-ebpo space --runs me/run-a me/run-b
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.hub.content import LocalFile, Publishable, files_below, local_file
from openrlhf_ebpo.hub.hub_settings import check_target, target
from openrlhf_ebpo.hub.publish import Commit, Repo, foreign_file, print_files, publish_with_timeout
from openrlhf_ebpo.hub_client import hub_api, hub_errors, retrying

PACKAGE = "openrlhf_ebpo"
SENT = (".py", ".json", ".md", ".css", ".js", ".txt", ".woff2", ".gz")  # suffixes of the package's files
RUNS, TOKEN = "EBPO_SPACE_RUNS", "EBPO_SPACE_HF_TOKEN"  # as space/ knows them
README = Path(__file__).with_name("templates") / "space.md"
IS_OURS = f"from {PACKAGE}.space.main import main"
APP = f"""{IS_OURS}

if __name__ == "__main__":
    main()
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repo", metavar="OWNER/NAME", help="the Space; created if it does not exist")
    parser.add_argument("--runs", nargs="+", required=True, metavar="OWNER/NAME", help="data set repos of hub push-run")
    parser.add_argument("--public", action="store_true", help="a Space that is made can be seen by everybody")
    parser.add_argument("--dry_run", action="store_true", help="list the files that would go, with sizes, and stop")


def run(args: argparse.Namespace) -> None:
    """Upload the app, and name the runs in the Space's variable.

    Raises:
        HubError: a run is not there, no right to write, no paid plan, or the upload failed.
    """
    repo = Repo(hub_api(), target(args.repo, "OWNER/NAME", "space"), "space")
    runs = [target(name, "--runs", "dataset") for name in args.runs]
    files = space_files(runs)
    if args.dry_run:
        print_files(files, repo.name)
        return
    print(*check_target(repo, args.public, our_app, "OWNER/NAME"), sep="\n", file=sys.stderr)
    private = []
    for name in runs:
        with hub_errors(f"--runs {name}, which `openrlhf-ebpo hub push-run` makes"):
            private += [name] if repo.api.repo_info(name, repo_type="dataset").private else []

    def deploy() -> None:
        publish_with_timeout(repo, files, Commit("the app", our_app, private=not args.public))
        with hub_errors(f"setting {RUNS} of {repo.name}"):
            about = "data set repos of the runs that are shown"
            repo.api.add_space_variable(repo.name, RUNS, ",".join(runs), description=about)

    retrying(deploy)
    if private:
        names = ", ".join(private)
        print(f"{names}: private. Give the Space a secret {TOKEN}, a token that may only read, in its settings")


def our_app(repo: Repo, commit: str, files: Mapping) -> str | None:
    """Ours is a Space whose app.py starts this package's; see `publish.Owner`."""
    if "app.py" in files:
        return None if IS_OURS.encode() in repo.read(commit, "app.py") else "is a Space with another app (app.py)"
    return foreign_file(files)


def space_files(runs: Sequence[str]) -> Publishable:
    """Everything that the Space consists of, by path in it.

    Raises:
        UsageError: a file of the package is a link out of it, or holds a secret.
    """
    from huggingface_hub import SpaceCard

    card = SpaceCard(README.read_text())
    card.data.datasets = list(runs)  # which the Hub links
    own = {
        "app.py": APP.encode(),
        "README.md": str(card).encode(),
        "requirements.txt": "".join(f"{line}\n" for line in requirements()).encode(),
    }
    return Publishable({**own, **package_files()})


def package_files() -> dict[str, LocalFile]:
    """The files of this package as it is installed here, by their path in a wheel."""
    found = {}
    for module in (PACKAGE, f"{PACKAGE}.eval", f"{PACKAGE}.space"):  # which lie elsewhere in a checkout
        root = Path(importlib.util.find_spec(module).submodule_search_locations[0])
        for path in files_below(root, skip=lambda path: path.name == "__pycache__"):
            if path.suffix in SENT and not any(part.startswith(".") for part in path.parts):
                found[f"{module.replace('.', '/')}/{path.as_posix()}"] = local_file(root / path, root)
    return found


def requirements() -> list[str]:
    """Packages that this one needs to show runs: those without an extra, and those of the extra `space`."""
    rows = [line.replace("'", '"').partition(";") for line in importlib.metadata.requires(PACKAGE) or []]
    return [name.strip() for name, _, marker in rows if marker.strip() in ("", 'extra == "space"')]


main = command("openrlhf-ebpo hub deploy-space", __doc__, add_flags, run, extra="hub")
