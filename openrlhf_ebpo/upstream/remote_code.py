"""Refuse the code that a model brings along in transformers and vLLM, unless extension.py says otherwise."""

from __future__ import annotations

import functools

from openrlhf_ebpo.extension import TRUST, models_trusted, trust_models


class RemoteCodeError(ValueError):
    """A model's own code was about to run. A ValueError, as transformers raises: its callers know what to do then."""


def hook() -> str:
    """Hook that Ray calls first in each worker, by name."""
    return f"{__name__}.install_and_trust" if models_trusted() else "openrlhf_ebpo.upstream.install.install"


def install_and_trust() -> None:
    from openrlhf_ebpo.upstream.install import install

    install()
    trust_models(True)


def decided_by_the_flag(original):
    """transformers' own rule, told what the flag says: a model whose classes transformers has loads without its
    code."""

    @functools.wraps(original)
    def resolve_trust_remote_code(trust_remote_code, model_name, has_local_code, has_remote_code, *args, **kwargs):
        requested = models_trusted() and trust_remote_code is not False
        if has_remote_code and not has_local_code and not requested:
            raise RemoteCodeError(_refusal(model_name))
        return original(requested, model_name, has_local_code, has_remote_code, *args, **kwargs)

    return resolve_trust_remote_code


def refused_without_the_flag(original):
    """Wrap the one function in transformers that imports a model's code."""

    @functools.wraps(original)
    def get_class_in_module(class_name, module_path, **kwargs):
        if not models_trusted():
            raise RemoteCodeError(_refusal(module_path))
        return original(class_name, module_path, **kwargs)

    return get_class_in_module


def _refusal(what: object) -> str:
    return f"{what}: the model brings its own code, which was not run; {TRUST} runs it"
