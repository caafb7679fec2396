"""Custom code: an object that a user names by its import path, my_package.my_module:Name, and code of a model.

A model names its code by `auto_map` in its files. It runs with --trust_remote_code alone: OpenRLHF has transformers and
vLLM run it always, and upstream/remote_code.py refuses it, whatever a caller asks for, until this process has been told
to: a command by its flag, a Ray worker by the name of its hook. No variable of the environment can do it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from typing import Any

from openrlhf_ebpo.errors import UsageError

SEARCH_PATH = "OPENRLHF_EBPO_SEARCH_PATH"  # folders, as in PYTHONPATH
TRUST = "--trust_remote_code"
TRUST_HELP = (
    "run Python code that a model comes with (auto_map in its config.json or tokenizer_config.json), also from other "
    "repositories that it names, and load weights that exist only as pickles; without this flag such a model is "
    "refused. Read that code first"
)
# State of this process: transformers calls the replacements with no argument that could carry it.
_models_trusted = False


def add_trust_flag(parser: argparse._ActionsContainer) -> None:
    """Add the flag to a command that loads models. parser: a parser or one of its groups."""
    parser.add_argument(TRUST, action="store_true", help=TRUST_HELP)


def trust_models(answer: bool) -> None:
    """Apply the flag to this process and to the Ray workers that it starts from now on."""
    global _models_trusted
    _models_trusted = answer


def models_trusted() -> bool:
    return _models_trusted


def is_import_path(text: str) -> bool:
    """MODULE:NAME, both of Python's identifiers."""
    module_name, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module_name.split("."), name])


def share_search_path() -> None:
    """Ray's workers find what this process finds: of its sys.path Ray gives them one folder, but every variable whose
    name begins with OPENRLHF_EBPO_."""
    os.environ[SEARCH_PATH] = os.pathsep.join([*sys.path, os.getcwd()])


def load(path: str, flag: str) -> Any:
    """The object that `path` names. Its module is looked for where Python looks, and in the current folder.

    Raises:
        UsageError: the path is not of the form MODULE:NAME, its module cannot be imported, or has no such name. The
            message begins with `flag`.
    """
    if not is_import_path(path):
        raise UsageError(f"{flag} {path}: give MODULE:NAME, for example my_package.my_module:Name")
    module_name, _, name = path.partition(":")
    shared = os.environ.get(SEARCH_PATH, "").split(os.pathsep)
    # last, so that no file there stands in for an installed package; `python -m` has the current folder, a script has
    # not
    sys.path.extend(folder for folder in (*shared, os.getcwd()) if folder and folder not in sys.path)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # custom code
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            problem = f"there is no module {error.name}, neither in this folder nor on PYTHONPATH"
        else:
            problem = f"importing {module_name} failed: {type(error).__name__}: {error}"
        raise UsageError(f"{flag} {path}: {problem}") from error
    if name not in vars(module):
        near = difflib.get_close_matches(name, vars(module))
        hint = f". Did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(
            f"{flag} {path}: {module_name} ({getattr(module, '__file__', None) or 'built in'}) has no {name}{hint}"
        )
    return getattr(module, name)
