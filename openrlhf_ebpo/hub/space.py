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
from collections.abc import Mapping, Sequence
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.content import LocalFile, Publishable, files_below, local_file
from openrlhf_ebpo.hub.hub_settings import check_write_access, target
from openrlhf_ebpo.hub.publish import Commit, Repo, foreign_file, print_files, publish_with_timeout
from openrlhf_ebpo.hub_client import HubError, hub_api, hub_errors, retrying

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
    """Upload the app, as `add_flags` has it.

    Raises:
        UsageError: a run is not there, no right to write, or no paid plan.
        HubError: the upload failed.
    """
    repo = Repo(hub_api(), target(args.repo, "OWNER/NAME", "space"), "space")
    args.runs = [target(name, "--runs", "dataset") for name in args.runs]
    files = space_files(args.runs)
    if args.dry_run:
        print_files(files, repo.name)
        return

    retrying(lambda: check_write_access(repo, "OWNER/NAME"))
    private = [name for name in args.runs if is_private(repo.api, name)]
    deploy(repo, files, args.runs, args.public)
    if private:
        names = ", ".join(private)
        print(f"{names}: private. Give the Space a secret {TOKEN}, a token that may only read, in its settings")


def our_app(repo: Repo, commit: str, files: Mapping) -> str | None:
    """Ours is a Space whose app.py starts this package's; see `publish.Owner`."""
    if "app.py" in files:
        return None if IS_OURS.encode() in repo.read(commit, "app.py") else "is a Space with another app (app.py)"
    return foreign_file(files)


def is_private(api, name: str) -> bool:
    """True for a private data set of a run.

    Raises:
        UsageError: the data set does not exist.
    """
    try:
        with hub_errors(f"looking at {name}"):
            return bool(api.repo_info(name, repo_type="dataset").private)
    except HubError as error:
        if error.status != 404:
            raise
        raise UsageError(
            f"--runs {name}: no such data set repo; publish the run first: openrlhf-ebpo hub push-run RUN_DIR "
            f"--repo {name}"
        ) from error


def deploy(repo: Repo, files: Publishable, runs: Sequence[str], public: bool) -> None:
    """Upload, and name the runs in the Space's variable.

    Raises:
        UsageError: the owner's plan does not include Spaces.
        HubError: it failed.
    """
    commit = Commit("the app", private=not public)

    def upload():
        done = publish_with_timeout(repo, files, commit, our_app)
        with hub_errors(f"setting {RUNS} of {repo.name}"):
            about = "data set repos of the runs that are shown"
            repo.api.add_space_variable(repo.name, RUNS, ",".join(runs), description=about)
        return done

    try:
        done = retrying(upload)
    except HubError as error:
        if error.status != 402:
            raise
        raise UsageError(
            f"the Hub did not make the Space {repo.name}: making one needs a paid plan of its owner (402, "
            f"https://huggingface.co/pricing). Without a Space: openrlhf-ebpo space --runs {' '.join(runs)}"
        ) from error
    print(f"deployed: {done.url} ({len(done.sent)} files sent, {done.unchanged} unchanged). The Hub builds it now")


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
