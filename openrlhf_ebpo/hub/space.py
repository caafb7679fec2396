"""Put the app that shows runs on the Hub, as a Space.

What goes: app.py of space/, the files of this package's base wheel beside it, the app's own modules among them (a Space
installs requirements.txt before it sees its own files, so a wheel could not be named there), and requirements.txt with
what both need. The runs are data set repos made
by `openrlhf-ebpo hub push-run`, by name or as the run directory that was pushed, whose cards then link to the Space; the
Space knows them from its variable EBPO_SPACE_RUNS. For private ones give the Space,
on its settings page, a secret EBPO_SPACE_HF_TOKEN: a token that may only read.

  openrlhf-ebpo hub deploy-space me/ebpo --runs me/run-a me/run-b --dry_run
  openrlhf-ebpo hub deploy-space me/ebpo --runs out/run me/run-b --public

Making a Gradio Space needs a paid plan of its owner (the Hub answers 402 otherwise). The same app runs on any machine,
without a plan: openrlhf-ebpo space --runs me/run-a me/run-b
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from email.parser import Parser
from functools import partial
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import published
from openrlhf_ebpo.hub.access import check_write_access
from openrlhf_ebpo.hub.content import Content
from openrlhf_ebpo.hub.local_files import files_below, local_file, named, say_left_out
from openrlhf_ebpo.hub.places import target
from openrlhf_ebpo.hub.retry import retrying
from openrlhf_ebpo.hub.upload import commit_of, listing, plan, print_plan, publish
from openrlhf_ebpo.models.hub_client import HubError, hub_api, hub_errors

PACKAGE = "openrlhf_ebpo"
CHECKOUT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", PACKAGE, "eval", "space")  # what a wheel is built from
NEEDED = ("app.py", "README.md", "requirements.txt")
RUNS, TOKEN = "EBPO_SPACE_RUNS", "EBPO_SPACE_HF_TOKEN"  # as space/ knows them
BUILT_FROM = (".py", ".toml", ".md", ".css", ".js", ".txt", ".woff2", ".gz")
OURS = (f"{PACKAGE}*",)  # what this command may have left behind
LEFT_OUT = ("__pycache__", "tests")
MODULES = "ebpo_space"  # of space/; they go with the package, as openrlhf_ebpo.space


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repo", metavar="OWNER/NAME", help="the Space; made where there is none")
    parser.add_argument(
        "--runs",
        nargs="+",
        required=True,
        metavar="RUN",
        help="data set repos of hub push-run, OWNER/NAME; or run directories that were pushed",
    )
    parser.add_argument("--public", action="store_true", help="a Space that is made can be seen by everybody")
    parser.add_argument("--dry_run", action="store_true", help="list the files that would go, with sizes, and stop")
    parser.add_argument("--space_dir", type=Path, default=CHECKOUT / "space", metavar="DIR", help="default: space/")


def run(args: argparse.Namespace) -> None:
    """Upload the app, as `add_flags` has it.

    Raises:
        UsageError: a run or space/ is not there, no right to write, or no paid plan.
        HubError: the upload failed.
    """
    args.repo = target(args.repo, "OWNER/NAME", "space")
    folders = [Path(name) for name in args.runs if (Path(name) / "run.json").is_file()]
    args.runs = [repo_of(name) for name in args.runs]
    check_space(args.space_dir)
    api = hub_api()
    with tempfile.TemporaryDirectory() as folder:
        files = space_files(args.space_dir, args.runs, Path(folder))
        others = files_below(args.space_dir, skip=lambda path: path.name in (*LEFT_OUT, MODULES))
        say_left_out([path for path in others if not named(path, NEEDED)], "files of the app")
        if args.dry_run:
            print_plan(plan(api, args.repo, files, repo_type="space", delete=OURS, manifest=None), args.repo)
            return
        retrying(lambda: check_write_access(api, args.repo, "space", "OWNER/NAME"))
        retrying(lambda: check_ours(api, args.repo))
        private = [name for name in args.runs if is_private(api, name)]
        deploy(api, args.repo, files, args.runs, args.public)
    for folder in folders:
        published.note(folder, "space", args.repo)
    if private:
        print(
            f"{', '.join(private)}: private. Give the Space a secret {TOKEN}, a token that may only read, in its settings"
        )


def repo_of(run: str) -> str:
    """The data set repo of one of --runs.

    Raises:
        UsageError: it is none, or a run directory that was not pushed.
    """
    if not (Path(run) / "run.json").is_file():
        return target(run, "--runs", "dataset")
    if repo := published.known(Path(run)).get("run"):
        return repo
    raise UsageError(f"--runs {run}: this run was not pushed yet: openrlhf-ebpo hub push-run {run} --repo OWNER/NAME")


def check_space(directory: Path) -> None:
    missing = [name for name in NEEDED if not (directory / name).is_file()]
    if missing:
        raise UsageError(
            f"--space_dir {directory} has no {', '.join(missing)}: the app is in the folder space/ of a checkout of this "
            "project; run the command there, or name that folder"
        )


def check_ours(api, repo: str) -> None:
    """That the Space is new, or one that this command has made.

    Raises:
        UsageError: there is another app, which would be overwritten.
    """
    with hub_errors(f"looking at {repo}"):
        commit = commit_of(api, repo, "space", "main")
        names = listing(api, repo, "space", commit) if commit else {}
    if "app.py" in names and not any(name.startswith(f"{PACKAGE}/") for name in names):
        raise UsageError(f"{repo} is a Space with another app, which would be overwritten: choose another name")


def is_private(api, name: str) -> bool:
    """Whether a run's data set is.

    Raises:
        UsageError: there is no such run.
    """
    try:
        with hub_errors(f"looking at {name}"):
            return bool(api.repo_info(name, repo_type="dataset").private)
    except HubError as error:
        if error.status != 404:
            raise
        raise UsageError(
            f"--runs {name}: no such data set repo; publish the run first: openrlhf-ebpo hub push-run RUN_DIR --repo {name}"
        ) from error


def deploy(api, repo: str, files: dict[str, Content], runs: Sequence[str], public: bool) -> None:
    """Upload, and name the runs in the Space's variable.

    Raises:
        UsageError: the owner's plan does not include Spaces.
        HubError: it failed.
    """
    how = {"repo_type": "space", "private": not public, "delete": OURS, "manifest": None}

    def upload():
        done = publish(api, repo, files, message="the app", create={"space_sdk": "gradio"}, **how)
        with hub_errors(f"setting {RUNS} of {repo}"):
            api.add_space_variable(repo, RUNS, ",".join(runs), description="data set repos of the runs that are shown")
        return done

    try:
        done = retrying(upload)
    except HubError as error:
        if error.status == 402:
            raise UsageError(no_plan(repo, runs)) from error
        raise
    print(f"deployed: {done.url} ({len(done.sent)} files sent, {done.unchanged} unchanged). The Hub builds it now")


def no_plan(repo: str, runs: Sequence[str]) -> str:
    owner = repo.partition("/")[0]
    return (
        f"the Hub did not make the Space {repo}: it asks for a paid plan (402). Free accounts cannot make Gradio Spaces "
        f"any more.\nEither give {owner} a plan (https://huggingface.co/pricing), or choose an organisation that has one; "
        "a Space that exists already can be updated by this command.\nOr look at the runs without a Space: "
        f"openrlhf-ebpo space --runs {' '.join(runs)}"
    )


def space_files(directory: Path, runs: Sequence[str], scratch: Path) -> dict[str, Content]:
    """Everything that the Space consists of, by path in it.

    Raises:
        UsageError: a link leads out of `directory`, or the wheel cannot be built.
    """
    app = {name: local_file(directory / name, directory) for name in NEEDED}
    package = package_files(scratch)
    metadata = next(path for name, path in package.items() if name.endswith(".dist-info/METADATA"))
    own = app["requirements.txt"].read_bytes().decode()
    return {
        **{name: local_file(path) for name, path in package.items()},
        **app,
        "README.md": with_datasets(app["README.md"].read_bytes().decode(), runs).encode(),
        "requirements.txt": requirements(own, base_requirements(metadata)).encode(),
    }


def with_datasets(readme: str, runs: Sequence[str]) -> str:
    """The Space's README.md with the runs in its front matter, so that the Hub links them."""
    from huggingface_hub import SpaceCard

    card = SpaceCard(readme)
    card.data.datasets = list(runs)
    return str(card)


def requirements(own: str, base: Iterable[str]) -> str:
    """requirements.txt of the app, and what the package needs beside it; the app's own version of a package wins. A line
    that asks for the package itself goes: the package is in the Space."""
    kept = [line.strip() for line in own.splitlines() if PACKAGE not in line.replace("-", "_")]
    named = set(map(_name, kept))
    return "\n".join([*kept, *(line for line in base if _name(line) not in named)]) + "\n"


def _name(requirement: str) -> str:
    """Normalised name of a package in a line of requirements, "" where there is none."""
    match = re.match(r"[A-Za-z0-9][\w.-]*", requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def base_requirements(metadata: Path) -> list[str]:
    """What the package needs without extras, from its METADATA."""
    found = Parser().parsestr(metadata.read_text()).get_all("Requires-Dist") or []
    return [line for line in found if "extra ==" not in line]


def package_files(scratch: Path) -> dict[str, Path]:
    """The files of the base wheel, by their path in it: built from the checkout that this module is in, else those that
    are installed.

    Raises:
        UsageError: the wheel cannot be built.
    """
    if not (CHECKOUT / "pyproject.toml").is_file():
        return installed_files()
    unpacked = scratch / "unpacked"
    with zipfile.ZipFile(build_wheel(CHECKOUT, scratch)) as wheel:
        wheel.extractall(unpacked)
    return {path.relative_to(unpacked).as_posix(): path for path in sorted(unpacked.rglob("*")) if path.is_file()}


def installed_files() -> dict[str, Path]:
    files = importlib.metadata.distribution(PACKAGE).files or []
    names = [file for file in files if file.parts[0].startswith(PACKAGE) and "__pycache__" not in file.parts]
    return {file.as_posix(): Path(file.locate()) for file in names if not file.name.startswith("direct_url")}


def build_wheel(checkout: Path, scratch: Path) -> Path:
    """Built from a copy: setuptools leaves build folders where it works, and takes old files out of them again.

    Raises:
        UsageError: it cannot be built, or a link in the checkout leads out of it.
    """
    copy = scratch / "source"
    copy.mkdir()
    for name in SOURCES:
        source = checkout / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=not_built_from, copy_function=partial(copy_of, checkout))
        elif source.is_file():
            copy_of(checkout, source, copy / name)
    argv = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(scratch / "wheel"),
        str(copy),
    ]
    if _setuptools() >= 77:  # as pyproject.toml asks; then nothing has to be downloaded
        argv.insert(4, "--no-build-isolation")
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"the wheel of {checkout} cannot be built: {done.stderr.strip()[-500:]}")
    (wheel,) = (scratch / "wheel").glob("*.whl")
    return wheel


def not_built_from(folder: str, names: list[str]) -> set[str]:
    """Of a folder of sources: what does not get into a wheel."""
    files = {name for name in names if Path(name).suffix not in BUILT_FROM and not Path(folder, name).is_dir()}
    return files | {name for name in names if name.startswith(".") or name in LEFT_OUT or name.endswith(".egg-info")}


def copy_of(root: Path, source: str | Path, target: str | Path) -> None:
    with local_file(source, root).open() as opened, open(target, "wb") as copy:
        shutil.copyfileobj(opened, copy)


def _setuptools() -> int:
    try:
        return int(importlib.metadata.version("setuptools").partition(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0


main = command("openrlhf-ebpo hub deploy-space", __doc__, add_flags, run, extra="hub")
