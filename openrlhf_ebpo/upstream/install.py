"""Puts the rows of SEAMS in place.

`install()` runs in the driver and, through Ray's `worker_process_setup_hook`, in every Ray worker. It imports
nothing heavy: a row is applied right after the module it belongs to has been imported, so every later
`from module import name` sees the replacement. A replacement is a class (a mixin: a subclass of it and
upstream's class takes the name) or a function that gets the original and returns what to put in its place.
Several rows may have one target: each is applied on top of the ones before it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import logging
import os

import wrapt

from openrlhf_ebpo.errors import SeamError
from openrlhf_ebpo.upstream import flash_attn
from openrlhf_ebpo.upstream.check import check_same_as_drivers, check_unchanged, untested_release_warning
from openrlhf_ebpo.upstream.replacements import KINDS, SEAMS, Seam
from openrlhf_ebpo.upstream.stack import is_cpu_stack

logger = logging.getLogger(__name__)
# kinds, by commas: "estimator" leaves out all that EBPO does not need, to debug or to move to another release. A
# model's own code then runs, as OpenRLHF has it
REPLACEMENTS = "OPENRLHF_EBPO_REPLACEMENTS"


@functools.cache
def install() -> None:
    """Arrange for every row to be applied as its module is imported; once in a process.

    Raises:
        SeamError: OpenRLHF is missing, differs from the driver's, or is an untested release that the rows do not fit.
    """
    seams = all_seams()
    check_same_as_drivers()
    if untested_release_warning():  # the driver has looked at its own files, not at those of this node
        check_unchanged(seams)
    flash_attn.offer_stand_in()
    if is_cpu_stack():
        from openrlhf_ebpo.upstream import cpu

        cpu.prepare_process()
    else:
        vllm_without_flashinfer()
    for seam in seams:  # hooks of one module are called in this order
        wrapt.register_post_import_hook(functools.partial(apply, seam), seam.module)
    logger.debug("seams: %s", "; ".join(seam.label for seam in seams))


def vllm_without_flashinfer() -> None:
    """vLLM takes it for installed in one place alone, its sampler; this is vLLM's own way to do without. What is set
    stays."""
    if importlib.util.find_spec("flashinfer") is None:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")


def all_seams() -> tuple[Seam, ...]:
    """The rows that this machine needs, of the kinds that REPLACEMENTS names (default: all).

    Raises:
        SeamError: it names something else.
    """
    seams = SEAMS
    if is_cpu_stack():
        from openrlhf_ebpo.upstream.cpu import cpu_replacements

        seams += cpu_replacements.SEAMS
    kinds = os.environ.get(REPLACEMENTS, "").replace(",", " ").split() or [*KINDS]
    if unknown := set(kinds) - KINDS.keys():
        raise SeamError(f"the variable {REPLACEMENTS} names {', '.join(sorted(unknown))}; kinds are {', '.join(KINDS)}")
    return tuple(seam for seam in seams if seam.kind in {*kinds, "cpu"})


def apply(seam: Seam, module) -> None:
    """Put one replacement in place. A list of what was applied, kept on the replacement, makes a second call a no-op.

    Raises:
        SeamError: the target does not exist.
    """
    *owners, name = seam.name.split(".")
    owner = functools.reduce(lambda found, part: getattr(found, part, None), owners, module)
    original = getattr(owner, name, None)
    if original is None:
        raise SeamError(f"seam {seam}: no such target in the installed package")
    applied = getattr(original, "_ebpo_seams", ())
    if seam.replacement in applied:
        return
    path, _, attribute = seam.replacement.partition(":")
    replacement = getattr(importlib.import_module(path), attribute)
    new = subclass(original, replacement) if inspect.isclass(replacement) else replacement(original)
    new._ebpo_seams = (*applied, seam.replacement)
    setattr(owner, name, new)


def subclass(original, mixin: type):
    """A subclass of `mixin` and upstream's class, a Ray actor class again if that was one, options kept."""
    metadata = getattr(original, "__ray_metadata__", None)
    base = metadata.modified_class.__ray_actor_class__ if metadata else original
    new = type(mixin.__name__, (mixin, base), {"__doc__": mixin.__doc__})
    if metadata is None:
        return new
    import ray

    options = {k: v for k, v in original._default_options.items() if v is not None}
    return ray.remote(**options)(new) if options else ray.remote(new)
