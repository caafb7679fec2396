"""What a user brings along: an object named by its import path, my_package.my_module:Name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from openrlhf_ebpo.errors import UsageError


def is_import_path(text: str) -> bool:
    """MODULE:NAME, both of Python's identifiers."""
    module_name, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module_name.split("."), name])


def also_look_in(folders: Iterable[str]) -> None:
    """After the places where Python looks anyway."""
    sys.path.extend(folder for folder in folders if folder not in sys.path)


def load(path: str, flag: str) -> Any:
    """The object that `path` names. Its module is looked for where Python looks, and in the current folder.

    Raises:
        UsageError: the path is not of the form MODULE:NAME, its module cannot be imported, or has no such name. The
            message begins with `flag`.
    """
    if not is_import_path(path):
        raise UsageError(f"{flag} {path}: give MODULE:NAME, for example my_package.my_module:Name")
    module_name, _, name = path.partition(":")
    also_look_in([os.getcwd()])  # `python -m` has it there, a console script has not
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(f"{flag} {path}: {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise UsageError(f"{flag} {path}: {module.__file__} has no {name}")
    return getattr(module, name)
