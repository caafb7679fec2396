"""Pushing the outbox of a run, in order, again and again until it is empty."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.client import HubError, hub_errors, scrub
from openrlhf_ebpo.hub.outbox import FULL_STATE, Item, step_tag
from openrlhf_ebpo.hub.retry import ATTEMPTS, pause_after
from openrlhf_ebpo.hub.upload import Published, commit_of, publish
from openrlhf_ebpo.upstream import UsageError

POLL_SECONDS = 1.0
# Files of an earlier step that must not stay beside those of a later one.
STALE = ("*.safetensors", "*.safetensors.index.json", f"{FULL_STATE}/*", "prior.json")

Report = Callable[[str], None]


def drain(
    run_dir: Path,
    api,
    report: Report = print,
    attempts: float = ATTEMPTS,
    over: Callable[[], bool] = lambda: True,
    sleep: Callable[[float], None] = time.sleep,
) -> HubError | None:
    """Push what lies in the outbox, until it is empty and `over()`, or until `attempts` rounds in a row have failed.

    Returns the error that it gave up at. With finitely many attempts, one that no repetition helps ends it at once.
    """
    outbox.tidy(run_dir)
    failures, ended = 0, over()
    while True:
        error = push_all(run_dir, api, report)
        if over() and not ended:
            failures, ended = 0, True  # the training has ended: what waits for a long pause is tried again soon
        if error is None:
            failures = 0
            if ended and not outbox.items(run_dir):
                return None
            sleep(POLL_SECONDS)
            continue
        failures += 1
        if failures >= attempts or (error.permanent and attempts != float("inf")):
            return error
        seconds = pause_after(failures, error)
        report(f"hub: trying again in {seconds:g} s")
        sleep(seconds)


def push_all(run_dir: Path, api, report: Report = print) -> HubError | None:
    """One attempt at every item, oldest first. An error that may pass ends the round: the Hub is away, and the order
    of the steps is kept. One that stays (a step's own) lets the later steps go first."""
    last = None
    for item in outbox.items(run_dir):
        error = attempt(run_dir, item, api, report)
        if error is None:
            continue
        last = error
        if not error.permanent:
            break
    return last


def attempt(run_dir: Path, item: Item, api, report: Report = print) -> HubError | None:
    """Push one item and say in hub.json what became of it. Nothing that goes wrong here may end the others' turn."""
    before = outbox.read_state(run_dir)["steps"].get(str(item.step), {})
    same = before.get("token") == item.token
    number = (before.get("attempts", 0) if same else 0) + 1
    outbox.write_state(run_dir, item.step, state="pushing", repo=item.repo, attempts=number, token=item.token)
    try:
        published = push_item(run_dir, item, api, report)
    except Exception as caught:
        error = caught if isinstance(caught, HubError) else _own_error(caught, item)
        outbox.write_state(run_dir, item.step, state="failed", error=str(error))
        report(f"hub: step {item.step}, attempt {number} failed: {error}")
        return error
    outbox.write_state(run_dir, item.step, state="pushed", error=None, commit=published.commit, url=published.url)
    outbox.remove(item)
    sent, total = len(published.sent), len(published.sent) + published.unchanged
    report(f"hub: step {item.step} is at {published.url} ({sent} of {total} files sent now, all verified)")
    return None


def _own_error(caught: Exception, item: Item) -> HubError:
    permanent = isinstance(caught, UsageError)
    words = str(caught) if permanent else f"{type(caught).__name__}: {caught}"
    return HubError(f"pushing step {item.step}: {words}", permanent=permanent)


def push_item(run_dir: Path, item: Item, api, report: Report = print) -> Published:
    """Commit a step to main and tag it. A step older than the newest one there goes to a branch of its own, since main
    must not move backwards; with `branch_per_step` every step gets such a branch too.

    Raises:
        HubError: in words.
    """
    make_card(run_dir, item, report)
    files, tag, branch = item.files(), step_tag(item.step), f"checkpoint-{item.step:06d}"
    how = {
        "private": item.private,
        "message": f"step {item.step}",
        "delete": STALE,
        "allow_pickle": any(path.startswith(f"{FULL_STATE}/") for path in files),
    }
    check_same_run(api, item.repo, files["run.json"])
    older = newest_step(api, item.repo) > item.step
    published = publish(api, item.repo, files, revision=branch if older else None, tag=tag, **how)
    if item.branch_per_step and not older:
        publish(api, item.repo, files, revision=branch, **how)
    return published


def make_card(run_dir: Path, item: Item, report: Report = print) -> None:
    """Write the card beside the snapshot, once: every attempt sends the same."""
    if (item.path / "card").is_dir():
        return
    temporary = item.path / "card.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for name, content in card(run_dir, item.step, item.repo, report).items():
        path = temporary / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    temporary.rename(item.path / "card")


def card(run_dir: Path, step: int, repo: str, report: Report = print) -> dict[str, bytes]:
    """The model card's files. A model without a card is worth more than no model, so a card that cannot be made is
    reported and left out."""
    try:
        from openrlhf_ebpo.hub.card import model_card

        return model_card(run_dir, step, repo)
    except Exception as error:
        report(f"hub: step {step} goes without a model card: {type(error).__name__}: {scrub(str(error))}")
        return {}


def newest_step(api, repo: str) -> int:
    """The highest step that the repo has a tag of; -1 where there is none."""
    with hub_errors(f"looking at the tags of {repo}"):
        if not commit_of(api, repo, "model", "main"):
            return -1
        tags = [ref.name.removeprefix("step-") for ref in api.list_repo_refs(repo).tags]
    return max((int(tag) for tag in tags if tag.isdigit()), default=-1)


def check_same_run(api, repo: str, run_json: Path) -> None:
    """One repo holds one run: another one's tags would be moved.

    Raises:
        HubError: the repo has been filled by another run.
    """
    there = remote_run(api, repo)
    here = json.loads(run_json.read_text())
    if there is not None and run_identity(there) != run_identity(here):
        raise HubError(another_run(repo, there), permanent=True)


def another_run(repo: str, there: dict) -> str:
    return (
        f"{repo} holds the steps of another run ({there.get('name')}, started {there.get('started')}), whose tags this one "
        "would move: choose another repo, or delete that one on the Hub"
    )


def run_identity(run: dict) -> tuple:
    """What stays the same when a run is resumed (its name is the time of day)."""
    return run.get("started"), run.get("model"), run.get("dataset")


def remote_run(api, repo: str) -> dict | None:
    """run.json on main, or None."""
    with hub_errors(f"looking at {repo}"), tempfile.TemporaryDirectory() as folder:
        commit = commit_of(api, repo, "model", "main")
        if not commit or not api.file_exists(repo, "run.json", revision=commit):
            return None
        path = api.hf_hub_download(repo, "run.json", revision=commit, local_dir=folder)
        return json.loads(Path(path).read_text())


def describe(step: str, entry: dict) -> str:
    """One line about a step's state in hub.json."""
    if entry["state"] == "pushed":
        return f"hub: step {step} is pushed and verified: {entry.get('url')}"
    if entry["state"] == "failed":
        return f"hub: step {step}: attempt {entry['attempts']} failed, will be repeated: {scrub(entry['error'])}"
    return f"hub: step {step}: {entry['state']}"
