"""Grade responses by a reward file: its `reward_func` is called as in training, in the same processes
(rewards/processes/sources.py), with the prompt, the response and the gold answer as label.

A response is right if its reward is 1 or more. Its answer, by which it votes in maj@k, is the text that the function
returns as "extracted"; without that key, what the reward `math` would read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import NamedTuple

from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.files import whole_characters
from openrlhf_ebpo.progress import file_identity
from openrlhf_ebpo.rewards.math.extraction import extract_answer, opened_thoughts
from openrlhf_ebpo.rewards.processes.reward_values import RewardError
from openrlhf_ebpo.rewards.processes.sources import RewardFile
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
from openrlhf_ebpo.upstream import remote_code

PASS = 1 - 1e-6  # rewards may be float32
FAILED = "reward: "  # how the error of a response begins whose reward failed
MAX_ERROR = 300  # characters of an error: samples.parquet has one for every response
MAX_ANSWER = 10_000  # of an answer that is longer than its response: samples.parquet has that, too
FOLDER = re.compile(r"(?<=\()/(?:[^/()]+/)+(?=[^/()]+:\d+ in )")  # of the file in "(/a/b.py:3 in f)"


class Asked(NamedTuple):
    """prompt: as the model got it, "" where that is not known."""

    prompt: str
    gold: str
    response: str


def reward_identity(path: str, flag: str) -> str:
    """Return NAME@HASH of a reward file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return file_identity(path)
    except OSError as error:
        raise UsageError(f"{flag} {path}: cannot be read ({error.strerror})") from None


def grade_all(settings: RewardSettings, identity: str, asked: Sequence[Asked]) -> list[dict]:
    """Return correct, extracted and error of each response. A reward that fails is a wrong response with its cause.

    settings: the file and its limits. identity: `reward_identity` when the command began.

    Raises:
        ReportedError: the file has changed since, or cannot be imported.
    """
    (path,) = settings.sources
    if file_identity(path) != identity:
        raise ReportedError(f"{path} has changed since the command began: repeat the command")
    return asyncio.run(_grade_all(settings, asked))


async def _grade_all(settings: RewardSettings, asked: Sequence[Asked]) -> list[dict]:
    source = RewardFile(settings, remote_code.hook())
    try:
        await source.prepare()
        return await asyncio.gather(*[_grade(source, each) for each in asked])
    except RewardError as error:
        raise ReportedError(str(error)) from None
    finally:
        source.close()


async def _grade(source: RewardFile, asked: Asked) -> dict:
    prompt, gold, response = asked
    try:
        reply = await source.ask([prompt + response], [prompt], [gold])
        found = reply["extracted"] if "extracted" in reply else extract_answer(response, bool(opened_thoughts(prompt)))
        if found and len(found) > max(len(response), MAX_ANSWER):
            raise RewardError(f"'extracted' has {len(found):,} characters; an answer has up to {MAX_ANSWER:,}")
    except RewardError as error:
        return {"correct": False, "extracted": None, "error": FAILED + publishable(str(error))}
    answer = whole_characters(found.strip()) if found else None
    return {"correct": reply["rewards"] >= PASS, "extracted": answer or None, "error": None}


def publishable(error: str) -> str:
    """Return an error on one line that a file takes, without folders of this machine: reports are published."""
    shown = "".join(sign if sign.isprintable() else " " for sign in FOLDER.sub("", error))
    return " ".join(shown.split())[:MAX_ERROR]
