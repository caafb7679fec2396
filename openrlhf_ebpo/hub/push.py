"""Pushing the outbox of a run, in order, again and again until it is empty."""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.content import PICKLES, Content, Publishable
from openrlhf_ebpo.hub.model_files import FULL_STATE
from openrlhf_ebpo.hub.notes import CARD, keeping_notes
from openrlhf_ebpo.hub.outbox import Item, step_tag
from openrlhf_ebpo.hub.upload import Published, commit_of, listing, publish
from openrlhf_ebpo.hub_client import ATTEMPTS, HubError, card_refused, hub_errors, local_problem, pause_after
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.run_log import read_metrics

POLL_SECONDS = 1.0
ATTEMPT_SECONDS = 3600.0  # limit of an attempt, and in addition what its bytes take at MIN_BYTES_PER_SECOND
MIN_BYTES_PER_SECOND = 50_000.0
# Files of an earlier step that must not stay beside those of a later one.
STALE = (
    "*.safetensors",
    "*.safetensors.index.json",
    f"{FULL_STATE}/*",
    "prior.json",
    ".eval_results/openrlhf_ebpo.yaml",
)
WEIGHTS = (".safetensors", ".gguf", *PICKLES)

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
    record = functools.partial(_record, run_dir, item, report)
    number = _attempts(run_dir, item) + 1
    record(state="pushing", attempts=number)
    limit = ATTEMPT_SECONDS + sum(item.sizes.values()) / MIN_BYTES_PER_SECOND

    def give_up() -> None:
        record(state="failed", error=f"it did not end within {limit:.0f} s")
        report(
            f"hub: step {item.step}, attempt {number} did not end within {limit:.0f} s; the process ends, the step stays queued"
        )
        os._exit(1)  # the thread that pushes hangs where no timeout of the client reaches it

    watchdog = threading.Timer(limit, give_up)
    watchdog.daemon = True
    watchdog.start()
    try:
        published = push_item(run_dir, item, api, report)
        record(state="pushed", error=None, commit=published.commit, url=published.url)
        outbox.remove(item)
    except Exception as caught:
        error = caught if isinstance(caught, HubError) else _own_error(caught, item)
        record(state="failed", error=str(error))
        report(f"hub: step {item.step}, attempt {number} failed: {error}")
        return error
    finally:
        watchdog.cancel()
    sent, total = len(published.sent), len(published.sent) + published.unchanged
    report(f"hub: step {item.step} is at {published.url} ({sent} of {total} files sent now, all verified)")
    return None


def _attempts(run_dir: Path, item: Item) -> int:
    before = outbox.read_state(run_dir)["steps"].get(str(item.step), {})
    return before.get("attempts", 0) if before.get("token") == item.token else 0


def _record(run_dir: Path, item: Item, report: Report, **changes) -> None:
    """Into hub.json. A full disk must not keep anything from being pushed: that makes room."""
    try:
        outbox.write_state(run_dir, item.step, repo=item.repo, token=item.token, **changes)
    except OSError as error:
        report(f"hub: step {item.step} is {changes['state']}, which hub.json could not be told: {error}")


def _own_error(caught: Exception, item: Item) -> HubError:
    permanent = isinstance(caught, UsageError) or local_problem(caught) is not None
    words = str(caught) if isinstance(caught, UsageError) else f"{type(caught).__name__}: {caught}"
    return HubError(f"pushing step {item.step}: {words}", permanent=permanent)


def push_item(run_dir: Path, item: Item, api, report: Report = print) -> Published:
    """Commit a step to main and tag it. A step older than the newest one there goes to a branch of its own, since main
    must not move backwards; with `branch_per_step` every step gets such a branch too.

    Raises:
        HubError: in words.
    """
    made = make_card(run_dir, item, report)
    files = {**made, **outbox.snapshot_files(item)}
    if CARD in files:  # at every attempt: somebody may write while a push waits
        own = files[CARD] if isinstance(files[CARD], bytes) else files[CARD].read_bytes()
        files[CARD] = keeping_notes(api, item.repo, own, report)
    try:
        return _push_files(run_dir, item, files, api)
    except HubError as error:
        if not card_refused(error):
            raise
        report(f"hub: step {item.step} goes without its card's metadata, which the Hub refuses: {error}")
    return _push_files(run_dir, item, {**files, "README.md": without_metadata(files["README.md"])}, api)


def _push_files(run_dir: Path, item: Item, files: Mapping[str, Content], api) -> Published:
    tag, branch = step_tag(item.step), f"checkpoint-{item.step:06d}"
    how = {
        "private": item.private,
        "message": f"step {item.step}",
        "delete": STALE,
        "allow_pickle": any(path.startswith(f"{FULL_STATE}/") for path in files),
        "still": functools.partial(still_current, item),
    }
    head = check_same_run(api, item.repo, json.loads(files["run.json"].read_bytes()))
    older = newest_step(api, item.repo, last_step(run_dir)) > item.step
    if older:
        return publish(api, item.repo, files, revision=branch, tag=tag, **how)
    published = publish(api, item.repo, files, tag=tag, based_on=head, **how)
    if item.branch_per_step:
        publish(api, item.repo, files, revision=branch, **how)
    return published


def still_current(item: Item) -> None:
    """Check that the step has not been saved again since its files were listed.

    Raises:
        HubError: it has, and its files are other ones now.
    """
    if not outbox.current(item):
        raise HubError(f"step {item.step} was saved again while it was being pushed; the new one is pushed next")


def without_metadata(card: Content) -> bytes:
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    text = (card if isinstance(card, bytes) else card.read_bytes()).decode()
    return REGEX_YAML_BLOCK.sub("", text, count=1).lstrip().encode()


def make_card(run_dir: Path, item: Item, report: Report = print) -> dict[str, bytes]:
    """The card's files, {} where they lie beside the snapshot: they are written there once, and every attempt sends the
    same. A full disk must not keep the model here."""
    if (item.path / "card").is_dir():
        return {}
    made = card(run_dir, item.step, item.repo, report)
    temporary = item.path / "card.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name, content in made.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        temporary.rename(item.path / "card")
    except OSError as error:
        report(f"hub: the card of step {item.step} could not be kept: {error}")
        return made
    return {}


def card(run_dir: Path, step: int, repo: str, report: Report = print) -> dict[str, bytes]:
    """The model card's files. A model without a card is worth more than no model, so a card that cannot be made is
    reported and left out."""
    try:
        from openrlhf_ebpo.hub.card import model_card

        return dict(Publishable(model_card(run_dir, step, repo)))  # what the filter refuses must not hold the model up
    except Exception as error:
        report(f"hub: step {step} goes without a model card: {type(error).__name__}: {redacted_text(str(error))}")
        return {}


def newest_step(api, repo: str, last: float = float("inf")) -> int:
    """The highest step up to `last` that the repo has a tag of; -1 where there is none."""
    with hub_errors(f"looking at the tags of {repo}"):
        if not commit_of(api, repo, "model", "main"):
            return -1
        tags = [ref.name.removeprefix("step-") for ref in api.list_repo_refs(repo).tags]
    return max((step for step in map(int, filter(str.isdigit, tags)) if step <= last), default=-1)


def last_step(run_dir: Path) -> float:
    """The step that the run has come to: what a resumed run rolled back has later ones, which do not hold main."""
    try:
        return max((row["step"] for row in read_metrics(run_dir)), default=float("inf"))
    except (ValueError, KeyError, OSError):
        return float("inf")


def check_same_run(api, repo: str, here: dict) -> str | None:
    """The commit of main, None where there is no repo yet. One repo holds one run: another one's tags would be moved,
    and another model's weights taken away.

    Raises:
        HubError: the repo has been filled by another run, or by something else.
    """
    with hub_errors(f"looking at {repo}"):
        commit = commit_of(api, repo, "model", "main")
        names = list(listing(api, repo, "model", commit)) if commit else []
    if "run.json" in names:
        there = remote_run(api, repo, commit)
        if run_identity(there) != run_identity(here):
            raise HubError(another_run(repo, there), permanent=True)
    elif weights := [name for name in names if name.endswith(WEIGHTS)]:
        raise HubError(
            f"{repo} holds a model that is not of a run ({weights[0]}), which would be overwritten: choose another repo, "
            "or delete that one on the Hub",
            permanent=True,
        )
    return commit


def another_run(repo: str, there: dict) -> str:
    return (
        f"{repo} holds the steps of another run ({there.get('name')}, started {there.get('started')}), whose tags this one "
        "would move: choose another repo, or delete that one on the Hub"
    )


def run_identity(run: dict) -> tuple:
    """What stays the same when a run is resumed (its name is the time of day)."""
    return run.get("started"), run.get("model"), run.get("dataset")


def remote_run(api, repo: str, commit: str) -> dict:
    """run.json of a commit that has one."""
    with hub_errors(f"reading run.json of {repo}"), tempfile.TemporaryDirectory() as folder:
        path = api.hf_hub_download(repo, "run.json", revision=commit, local_dir=folder)
        found = json.loads(Path(path).read_text())
    return found if isinstance(found, dict) else {}


def describe(step: str, entry: dict) -> str:
    """One line about a step's state in hub.json."""
    if entry["state"] == "pushed":
        return f"hub: step {step} is pushed and verified: {entry.get('url')}"
    if entry["state"] == "failed":
        return (
            f"hub: step {step}: attempt {entry['attempts']} failed, will be repeated: {redacted_text(entry['error'])}"
        )
    return f"hub: step {step}: {entry['state']}"
