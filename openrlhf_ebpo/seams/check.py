"""Whether the installed OpenRLHF is the one that the rows are written for: its version, and every target's source."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata

from openrlhf_ebpo.errors import SeamError
from openrlhf_ebpo.seams.rows import Seam
from openrlhf_ebpo.seams.stack import module_path

OPENRLHF_VERSION = "0.11.2"


def installed_version() -> str:
    """OpenRLHF's.

    Raises:
        SeamError: it is not installed.
    """
    try:
        return importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        raise SeamError(
            f"OpenRLHF is not installed. With a GPU: pip install 'openrlhf[vllm]=={OPENRLHF_VERSION}'; without one: "
            "bash scripts/quickstart.sh sets everything up (requirements/cpu.txt)."
        ) from None


def check_version() -> None:
    """Hold the installed OpenRLHF's version against the one that the rows are written for.

    Raises:
        SeamError: it is another, or OpenRLHF is not installed.
    """
    found = installed_version()
    if found != OPENRLHF_VERSION:
        raise SeamError(
            f"OpenRLHF {found} is installed, and this version of openrlhf_ebpo is written for {OPENRLHF_VERSION}: "
            f"pip install 'openrlhf=={OPENRLHF_VERSION}' (docs/upgrading.md says how to move to another release)."
        )


def check_sources(seams: tuple[Seam, ...]) -> None:
    """Hold every row against the installed source, without importing it.

    Raises:
        SeamError: a target is gone or its source differs from the one the row was written for.
    """
    for seam in seams:
        if seam.source is None:
            continue
        found = source_fingerprint(seam.module, seam.name)
        if found != seam.source:
            state = "is gone" if found is None else f"has changed (fingerprint {found}, expected {seam.source})"
            raise SeamError(
                f"seam {seam}: upstream's {seam.name} {state}. It is replaced by {seam.replacement} because {seam.why}. "
                f"Reinstall openrlhf=={OPENRLHF_VERSION}, or adapt the row (docs/upgrading.md)."
            )


def source_fingerprint(module: str, name: str) -> str | None:
    """Fingerprint of a function's or class's source text; None where there is none."""
    path = module_path(module)
    if not path.is_file():
        return None
    source = path.read_text()
    node = ast.parse(source)
    for part in name.split("."):
        node = next((n for n in getattr(node, "body", ()) if getattr(n, "name", None) == part), None)
        if node is None:
            return None
    return hashlib.sha256(ast.get_source_segment(source, node).encode()).hexdigest()[:12]
