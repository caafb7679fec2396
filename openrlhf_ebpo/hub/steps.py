"""One step of a run to the Hub: its files with their card, in one commit, under the step's tag."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from openrlhf_ebpo.hub.exports import step_tag
from openrlhf_ebpo.hub.local_files import opened
from openrlhf_ebpo.hub.publish import CARD, Published, check_same_run, publish
from openrlhf_ebpo.hub.publishable import Content, Publishable, size
from openrlhf_ebpo.hub_client import HubError, in_time
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.run_log import read_metrics

STEP_TAG = re.compile(r"step-\d{6,12}", re.ASCII)

Report = Callable[[str], None]


def push_step(
    api,
    repo: str,
    run_dir: Path,
    step: int,
    files: Mapping[str, Content],
    newest: int,
    private: bool,
    report: Report = print,
) -> Published:
    """Commit a step to main and tag it, in a process that is ended after a time limit. A step older than `newest`, the newest
    one there, goes to a branch `checkpoint-000010`: main never moves backwards.

    Raises:
        HubError: the Hub refuses it, cannot be reached, or holds another run.
    """
    files = {**files, **card(run_dir, step, repo, report)}
    attempt = functools.partial(_publish_step, api, repo, step, newest, private)
    limited = functools.partial(in_time, doing=f"pushing step {step}", size=sum(map(size, files.values())))
    try:
        published = limited(functools.partial(attempt, files))
    except HubError as error:
        if not error.card_refused:
            raise
        report(f"hub: step {step} goes without its card's metadata, which the Hub refuses: {error}")
        with opened(files[CARD]) as text:
            plain = without_metadata(text.read())
        published = limited(functools.partial(attempt, {**files, CARD: plain}))
    for path in published.kept:
        report(f"hub: {path} of {repo} was written or edited by somebody, and stays as it is")
    return published


def _publish_step(api, repo: str, step: int, newest: int, private: bool, files: Mapping[str, Content]) -> Published:
    how = {"private": private, "message": f"step {step}", "tag": step_tag(step)}
    head = check_same_run(api, repo, json.loads(files["run.json"]))
    if newest > step:
        return publish(api, repo, files, revision=f"checkpoint-{step:06d}", **how)
    return publish(api, repo, files, based_on=head, **how)


def without_metadata(text: bytes) -> bytes:
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    return REGEX_YAML_BLOCK.sub("", text.decode(), count=1).lstrip().encode()


def card(run_dir: Path, step: int, repo: str, report: Report = print) -> dict[str, bytes]:
    """Files of the model card; {} if it cannot be made, which is reported and must not stop the model."""
    try:
        from openrlhf_ebpo.hub.card import model_card

        return dict(Publishable(model_card(run_dir, step, repo)))
    except Exception as error:
        report(f"hub: step {step} goes without a model card: {type(error).__name__}: {redacted_text(str(error))}")
        return {}


def newest_step(tags: Mapping[str, str], run_dir: Path) -> int:
    """The highest step that the repo has a tag of, or -1. Tags of steps that a resumed run has rolled back do not count."""
    try:
        last = max((row["step"] for row in read_metrics(run_dir)), default=float("inf"))
    except (ValueError, KeyError, OSError):
        last = float("inf")
    steps = [int(tag.removeprefix("step-")) for tag in tags if STEP_TAG.fullmatch(tag)]
    return max((step for step in steps if step <= last), default=-1)
