"""Thoughts before an answer, in <think>…</think>, which --strip_think does not read for one."""

THINK, END = "<think>", "</think>"


def without_thinking(response: str) -> str:
    """What follows the last </think>; nothing of a <think> that never ends. Where the prompt has begun it, the response is
    recorded with it (`begun`)."""
    return response.rpartition(END)[2].partition(THINK)[0]


def begun(prompt: str) -> str:
    """The <think> that the prompt has begun the response with, or nothing."""
    return THINK if prompt.rstrip().endswith(THINK) else ""
