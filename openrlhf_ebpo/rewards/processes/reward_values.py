"""Checks of what a reward function or server returned for one response, and descriptions of failures. Without torch:
the processes of reward functions import this, and a function that needs no torch should not wait for it."""

from __future__ import annotations

import functools
import logging
import math
import traceback

import numpy as np

from openrlhf_ebpo.redact import redacted_text

_warn_once = functools.lru_cache(maxsize=64)(logging.getLogger(__name__).warning)
MAX_SHOWN_CHARS = 200  # of a returned value
MAX_ERROR_CHARS = 2000
ERROR_KEY = "reward_error"  # in a rollout actor's response
NO_ANSWER = "no_answer"  # how a reward's log of responses without an answer ends: math_no_answer


class RewardError(RuntimeError):
    """A reward that cannot be used; the message is for the author of the reward function."""


def describe(error: BaseException) -> str:
    """Return one line without secrets: the error, and where it was raised unless it is a RewardError."""
    if isinstance(error, RewardError):
        return redacted_text(str(error))
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return redacted_text(" ".join(f"{type(error).__name__}: {error}".split())[:MAX_ERROR_CHARS]) + where


def check_reward(returned, giver: str = "reward_func") -> dict:
    """Check one response's reward and return the part that OpenRLHF reads, as plain numbers: a reward function's
    crosses to another process as JSON. Values of `extra_logs` that hold no number are left out.

    Args:
        returned: {"rewards": number, "scores": number, optional, "extra_logs": dict of numbers, optional,
            "extracted": text or None, optional: the answer that the reward has read, by which responses vote in
            evaluations}; or the reward alone, as OpenRLHF took it up to 0.8.2. A number may be in a tensor, an array or
            a list, the text in a list.
        giver: of the reward, for messages.

    Raises:
        RewardError: with what was found instead.
    """
    if isinstance(returned, (int, float, list, np.ndarray, np.generic)) or _is_tensor(returned):
        returned = {"rewards": returned}
    if not isinstance(returned, dict):
        raise RewardError(
            f"{giver} returned {_show(returned)}; it must return a dict with the key 'rewards' (and optionally "
            "'scores' and 'extra_logs'), or the reward alone"
        )
    if returned.get("rewards") is None:
        raise RewardError(f"{giver} gave no reward: 'rewards' is missing or None in {_show(returned)}")
    extra_logs = returned.get("extra_logs") or {}
    if not isinstance(extra_logs, dict):
        raise RewardError(f"{giver} gave 'extra_logs' as {_show(extra_logs)}; a dict of numbers is needed")
    if taken := {"step", "time"} & extra_logs.keys():
        raise RewardError(
            f"'extra_logs' has {', '.join(sorted(taken))}, which every row of metrics.jsonl has: rename it"
        )
    checked = {k: finite_number(returned[k], k, giver) for k in ("rewards", "scores") if returned.get(k) is not None}
    logs = {name: number for name, value in extra_logs.items() if (number := _logged(name, value, giver)) is not None}
    if "extracted" in returned:
        checked["extracted"] = _answer(returned["extracted"], giver)
    return {**checked, "extra_logs": logs}


def _answer(value, giver: str) -> str | None:
    found = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    if not isinstance(found, (str, type(None))):
        raise RewardError(f"{giver} gave 'extracted' as {_show(value)}; a text, or None for no answer, is needed")
    return found


def _logged(name: str, value, giver: str) -> bool | int | float | None:
    """Return the number of a log, the first of a tensor, as OpenRLHF takes it. None, and a warning, if it holds no
    number."""
    numbers = _numbers(value)
    if numbers and isinstance(numbers[0], (int, float)):
        return numbers[0]
    kind = type(value).__name__
    _warn_once("%s gave %r in its extra_logs without a number (%s): it is not logged", giver, name, kind)
    return None


def finite_number(value, name: str, giver: str = "the reward function") -> bool | int | float:
    """Return the one finite number that `value` holds, as a plain one. Raises RewardError for anything else."""
    numbers = _numbers(value)
    if len(numbers) != 1:
        raise RewardError(f"{giver} gave {len(numbers)} values as {name!r} for one response: {_show(value)}")
    if not isinstance(numbers[0], (int, float)) or not math.isfinite(numbers[0]):
        shown = numbers[0] if isinstance(value, (list, tuple)) else value
        raise RewardError(f"{giver} gave {_show(shown)} as {name!r}; one finite number is needed")
    return numbers[0]


def _numbers(value) -> list:
    """Return the values of a tensor, an array, a list, or a single one, as Python's."""
    values = np.asarray(value.tolist() if _is_tensor(value) else value, dtype=object).ravel()
    return [each.item() if isinstance(each, np.generic) or _is_tensor(each) else each for each in values]


def _is_tensor(value) -> bool:
    return callable(getattr(value, "numel", None)) and callable(getattr(value, "item", None))


def _show(value) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
