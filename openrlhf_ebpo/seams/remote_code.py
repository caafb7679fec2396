"""Code that a model brings along (`auto_map` in its files names it) runs with --trust_remote_code alone.

OpenRLHF has transformers and vLLM run it always. Here nothing of it runs, whatever a caller asks for, until this
process has been told to: a command by its flag, a Ray worker by the name of its hook. No variable of the environment
can do it.
"""

from __future__ import annotations

import argparse
import functools

FLAG = "--trust_remote_code"
HELP = (
    "run Python code that a model comes with (auto_map in its config.json or tokenizer_config.json), also from other "
    "repositories that it names, and load weights that exist only as pickles; without this flag such a model is "
    "refused. "
    "Read that code first"
)


class RemoteCodeError(ValueError):
    """A model's own code was about to run. A ValueError, as transformers raises: its callers know what to do then."""


def add_flag(parser) -> None:
    """Add the flag to a command that loads models. parser: a parser or one of its groups."""
    parser.add_argument(FLAG, action="store_true", help=HELP)


def trust(args: argparse.Namespace) -> None:
    """Apply the flag to this process and to the Ray workers that it starts from now on."""
    trusted.answer = bool(args.trust_remote_code)


def trusted() -> bool:
    return trusted.answer


trusted.answer = False


def hook() -> str:
    """Hook that Ray calls first in each worker, by name."""
    return f"{__name__}.install_and_trust" if trusted() else "openrlhf_ebpo.seams.install.install"


def install_and_trust() -> None:
    from openrlhf_ebpo.seams.install import install

    install()
    trusted.answer = True


def decided_by_the_flag(original):
    """transformers' own rule, told what the flag says: a model whose classes transformers has loads without its
    code."""

    @functools.wraps(original)
    def resolve_trust_remote_code(trust_remote_code, model_name, has_local_code, has_remote_code, *args, **kwargs):
        asked = trusted() and trust_remote_code is not False
        if has_remote_code and not has_local_code and not asked:
            raise RemoteCodeError(_refusal(model_name))
        return original(asked, model_name, has_local_code, has_remote_code, *args, **kwargs)

    return resolve_trust_remote_code


def refused_without_the_flag(original):
    """Wrap the one function in transformers that imports a model's code."""

    @functools.wraps(original)
    def get_class_in_module(class_name, module_path, **kwargs):
        if not trusted():
            raise RemoteCodeError(_refusal(module_path))
        return original(class_name, module_path, **kwargs)

    return get_class_in_module


def _refusal(what: object) -> str:
    return f"{what}: the model brings its own code, which was not run; {FLAG} runs it"


class EngineTrustsAsAsked:
    """Mixin over RolloutRayActor: vLLM's core may be a process that no hook of ours reaches, so its argument says
    it."""

    async def __init__(self, *args, **kwargs):
        await super().__init__(*args, **{**kwargs, "trust_remote_code": trusted()})
