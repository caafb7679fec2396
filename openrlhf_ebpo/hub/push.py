"""Push the queue of a run. The way of one step: `drain` → `push_all` → `attempt` → `push_item` → `upload.publish`."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.content import FULL_STATE, Content, Publishable
from openrlhf_ebpo.hub.notes import CARD, keeping_notes
from openrlhf_ebpo.hub.outbox import Item, step_tag
from openrlhf_ebpo.hub.places import check_same_run, check_write_access
from openrlhf_ebpo.hub.upload import Published, commit_of, publish
from openrlhf_ebpo.hub_client import ATTEMPTS, HubError, card_refused, hub_errors, local_problem, pause_after
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.run_log import read_metrics

POLL_SECONDS = 1.0
ATTEMPT_SECONDS = 3600.0  # limit of an attempt, and in addition what its bytes take at MIN_BYTES_PER_SECOND
MIN_BYTES_PER_SECOND = 50_000.0
# Files of an earlier step that must not stay with those of a later one.
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
    """Push what waits, until the queue is empty and `over()`, or until `attempts` rounds in a row have failed.

    Returns the error at which it gave up. With finitely many attempts, a permanent error ends it at once.
    """
    failures, ended = 0, over()
    while True:
        try:
            error = push_all(run_dir, api, report)
        except OSError as caught:  # hub.json or the queue cannot be read
            error = _as_hub_error(caught, f"reading the queue of {run_dir}")
            report(f"hub: {error}")
        if over() and not ended:
            failures, ended = 0, True  # the training has ended: no long pause is left
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
    """Attempt every step once, oldest first; returns the last error. One that may pass ends the round, which keeps the
    order of the steps. A permanent one, of a step alone, lets the later steps go first."""
    last = None
    outbox.tidy(run_dir)
    for item in outbox.items(run_dir):
        error = attempt(run_dir, item, api, report)
        last = error or last
        if error and not error.permanent:
            break
    return last


def attempt(run_dir: Path, item: Item, api, report: Report = print) -> HubError | None:
    """Push one step and write the result into hub.json. Returns the error, whatever it is: other steps get their turn."""
    before = outbox.read_state(run_dir)["steps"].get(str(item.step), {})
    number = before["attempts"] + 1 if before.get("token") == item.token else 1
    record = functools.partial(_record, run_dir, item, report, attempts=number)
    record(state="pushing")
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
        error = _as_hub_error(caught, f"pushing step {item.step}")
        if not outbox.is_current(item):
            error = HubError(f"step {item.step} was saved again while it was being pushed; the new one is pushed next")
        record(state="failed", error=str(error))
        report(f"hub: step {item.step}, attempt {number} failed: {error}")
        return error
    finally:
        watchdog.cancel()
    sent, total = len(published.sent), len(published.sent) + published.unchanged
    report(f"hub: step {item.step} is at {published.url} ({sent} of {total} files sent now, all verified)")
    return None


def _record(run_dir: Path, item: Item, report: Report, **changes) -> None:
    """Write into hub.json. A full disk must not stop a push, which makes room."""
    try:
        outbox.write_state(run_dir, item.step, repo=item.repo, token=item.token, **changes)
    except OSError as error:
        report(f"hub: step {item.step} is {changes['state']}, which could not be written to hub.json: {error}")


def _as_hub_error(caught: Exception, doing: str) -> HubError:
    if isinstance(caught, HubError):
        return caught
    if isinstance(caught, UsageError):
        return HubError(f"{doing}: {caught}", permanent=True)
    return HubError(f"{doing}: {type(caught).__name__}: {caught}", permanent=local_problem(caught) is not None)


def push_item(run_dir: Path, item: Item, api, report: Report = print) -> Published:
    """Commit a step to main and tag it. A step older than the newest one there goes to a branch `checkpoint-000010`, since
    main must not move backwards.

    Raises:
        HubError: the Hub refuses it, cannot be reached, or holds another run.
        UsageError: the snapshot is damaged.
    """
    files = {**outbox.snapshot_files(item), **card(run_dir, item.step, item.repo, report)}
    if CARD in files:  # at every attempt: somebody may edit the card on the Hub while a push waits
        files[CARD] = keeping_notes(api, item.repo, _bytes(files[CARD]), report)
    try:
        return _publish_step(run_dir, item, files, api)
    except HubError as error:
        if not card_refused(error):
            raise
        report(f"hub: step {item.step} goes without its card's metadata, which the Hub refuses: {error}")
    return _publish_step(run_dir, item, {**files, CARD: without_metadata(_bytes(files[CARD]))}, api)


def _publish_step(run_dir: Path, item: Item, files: Mapping[str, Content], api) -> Published:
    tag, branch = step_tag(item.step), f"checkpoint-{item.step:06d}"
    how = {
        "private": item.private,
        "message": f"step {item.step}",
        "delete": STALE,
    }
    head = check_same_run(api, item.repo, json.loads(files["run.json"].read_bytes()))
    if newest_step(api, item.repo, last_step(run_dir)) > item.step:
        return publish(api, item.repo, files, revision=branch, tag=tag, **how)
    return publish(api, item.repo, files, tag=tag, based_on=head, **how)


# The card


def _bytes(content: Content) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def without_metadata(card: bytes) -> bytes:
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    return REGEX_YAML_BLOCK.sub("", card.decode(), count=1).lstrip().encode()


def card(run_dir: Path, step: int, repo: str, report: Report = print) -> dict[str, bytes]:
    """Files of the model card; {} if it cannot be made, which is reported and must not stop the model."""
    try:
        from openrlhf_ebpo.hub.card import model_card

        return dict(Publishable(model_card(run_dir, step, repo)))
    except Exception as error:
        report(f"hub: step {step} goes without a model card: {type(error).__name__}: {redacted_text(str(error))}")
        return {}


# The repo


def newest_step(api, repo: str, last: float) -> int:
    """The highest step up to `last` that the repo has a tag of, or -1."""
    with hub_errors(f"looking at the tags of {repo}"):
        if not commit_of(api, repo, "model", "main"):
            return -1
        tags = [ref.name.removeprefix("step-") for ref in api.list_repo_refs(repo).tags]
    return max((step for step in map(int, filter(str.isdecimal, tags)) if step <= last), default=-1)


def last_step(run_dir: Path) -> float:
    """The newest step of the run. Tags of later steps, which a resumed run has rolled back, do not hold main."""
    try:
        return max((row["step"] for row in read_metrics(run_dir)), default=float("inf"))
    except (ValueError, KeyError, OSError):
        return float("inf")


def check_target(api, repo: str, private: bool, run: dict | None, flag: str = "--repo") -> list[str]:
    """Check, before anything is queued for a repo, that the token may write to it, and that it holds no other run than
    `run`; None asks the token alone. Returns notices. A Hub that cannot be reached is a notice.

    Raises:
        UsageError: the token has no right to write, or the repo holds something else.
    """
    try:
        check_write_access(api, repo, flag=flag)
        if run is not None:
            check_same_run(api, repo, run)
        with hub_errors(f"looking at {repo}"):
            there = api.repo_info(repo).private if api.repo_exists(repo) else None
    except HubError as error:
        if error.permanent:
            raise UsageError(f"{flag} {repo}: {error}") from error
        return [f"warning: the Hub cannot be reached ({error}): what is to be pushed to {repo} waits"]
    if there is None:
        return [f"models will be pushed to {repo}, a new {'private' if private else 'public'} repo"]
    if private and not there:
        return [f"warning: {repo} exists and is public: everybody can read what is pushed there"]
    if there and not private:
        return [f"warning: {repo} exists and is private, and stays so: make it public on its page at the Hub"]
    return [f"models will be pushed to {repo}, which exists and is {'private' if private else 'public'}"]
