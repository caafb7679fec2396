"""Checks of what a reward function or server returned for one response, and descriptions of failures. Without torch: the
processes of reward functions import this, and a function that needs no torch should not wait for it."""

from __future__ import annotations

import math
import traceback

import numpy as np

from openrlhf_ebpo.redact import redacted_text

MAX_SHOWN_CHARS = 200  # of a returned value
MAX_ERROR_CHARS = 2000


class RewardError(RuntimeError):
    """A reward that cannot be used; the message is for the author of the reward function."""


def describe(error: BaseException) -> str:
    """Return one line without secrets: the error, and where it was raised unless it is a RewardError."""
    if isinstance(error, RewardError):
        return redacted_text(str(error))
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return redacted_text(f"{type(error).__name__}: {_text(error)}"[:MAX_ERROR_CHARS]) + where


def _text(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())
    except BaseException as second:  # a foreign __str__ may do anything, exit too
        return f"(it has no text: its __str__ raised {type(second).__name__})"


def check_reward(returned) -> dict:
    """Return what a reward function gave for one response, if it can be used: numbers as they are, a list of one
    number (as reward servers send it) as that number. The values of `extra_logs` are not checked.

    Args:
        returned: expected {"rewards": number or tensor of one number, "scores": same, optional, "extra_logs": dict
            of numbers, optional}.

    Raises:
        RewardError: with what was found instead.
    """
    if not isinstance(returned, dict):
        raise RewardError(
            f"reward_func returned {_show(returned)}; it must return a dict with the key 'rewards' "
            "(and optionally 'scores' and 'extra_logs')"
        )
    if returned.get("rewards") is None:
        raise RewardError(f"reward_func gave no reward: 'rewards' is missing or None in {_show(returned)}")
    extra_logs = returned.get("extra_logs")
    if extra_logs is not None and not isinstance(extra_logs, dict):
        raise RewardError(f"reward_func gave 'extra_logs' as {_show(extra_logs)}; a dict of numbers is needed")
    if taken := {"step", "time"} & (extra_logs or {}).keys():
        raise RewardError(
            f"'extra_logs' has {', '.join(sorted(taken))}, which every row of metrics.jsonl has: rename it"
        )
    checked = {k: finite_number(returned[k], k) for k in ("rewards", "scores") if returned.get(k) is not None}
    return {**returned, **checked}


def finite_number(value, name: str):
    """Return `value`, out of its list of one. Raises RewardError unless it is one finite number."""
    size = value.numel() if _is_tensor(value) else np.size(value)
    if size != 1:
        raise RewardError(f"the reward function gave {size} values as {name!r} for one response: {_show(value)}")
    if isinstance(value, (list, tuple, np.ndarray)):
        value = np.asarray(value, dtype=object).item()
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"the reward function gave {_show(value)} as {name!r}; one finite number is needed")
    return value


def plain(checked: dict) -> dict:
    """Return what OpenRLHF reads of a checked reward, tensors and arrays as the numbers that they hold: it crosses to another
    process as JSON, so it brings no code."""
    kept = {name: _number(checked[name]) for name in ("rewards", "scores") if checked.get(name) is not None}
    return {**kept, "extra_logs": {name: _number(value) for name, value in (checked.get("extra_logs") or {}).items()}}


def _number(value):
    """Convert to plain numbers; of a tensor the first one, as OpenRLHF takes it from `extra_logs`."""
    if _is_tensor(value):
        return value.flatten()[0].item()
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _is_tensor(value) -> bool:
    return callable(getattr(value, "numel", None)) and callable(getattr(value, "item", None))


def _show(value) -> str:
    try:
        text = f"{type(value).__name__} {value!r}"
    except Exception as error:
        text = f"{type(value).__name__} (its __repr__ raised {type(error).__name__})"
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
