"""Secrets stay out of everything that is printed or written."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

REDACTED = "<redacted>"
SECRET_FLAG = re.compile(r"(^|[._])(key|token|secret|password)$")
CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
NOT_SECRET = ("input_key", "label_key", "image_key", "output_key", "metric_key", "cluster_key")


class Secret(str):
    """A string that works as itself and prints as <redacted>: upstream prints all its arguments."""

    def __repr__(self) -> str:
        return repr(REDACTED)


def is_secret(flag: str) -> bool:
    return bool(SECRET_FLAG.search(flag)) and not flag.endswith(NOT_SECRET)


def hide_secrets(args: dict) -> None:
    """Wrap secret values of a flat namespace in place."""
    for flag, value in args.items():
        if isinstance(value, str) and is_secret(flag):
            args[flag] = Secret(value)


def redacted(value):
    """A copy of nested arguments in plain JSON types, without secrets."""
    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, dict):
        return {k: redacted(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(v) for v in value]
    if isinstance(value, Secret):
        return REDACTED
    if isinstance(value, str):
        return CREDENTIALS.sub(REDACTED, value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def redacted_argv(argv: list[str], args: dict) -> list[str]:
    """The command line as it may be stored, without the secrets that `args` (a flat namespace) holds."""
    secrets = [str.__str__(value) for value in args.values() if isinstance(value, Secret) and value]
    result = []
    for item in argv:
        for secret in secrets:
            item = item.replace(secret, REDACTED)
        result.append(CREDENTIALS.sub(REDACTED, item))
    return result
