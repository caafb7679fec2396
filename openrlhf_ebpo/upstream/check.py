"""Check that the installed OpenRLHF is one that the rows are written for: by the source of every target, not by
version."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import socket
import sys

from openrlhf_ebpo import __version__
from openrlhf_ebpo.errors import SeamError
from openrlhf_ebpo.upstream.releases import GPU_INSTALL, RECOMMENDED, TESTED
from openrlhf_ebpo.upstream.replacements import Seam
from openrlhf_ebpo.upstream.stack import module_path

UPSTREAM = "openrlhf"
DRIVERS_RELEASE = "OPENRLHF_EBPO_DRIVERS_RELEASE"  # variables of Ray's workers: of OpenRLHF, and of this package
DRIVERS_VERSION = "OPENRLHF_EBPO_DRIVERS_VERSION"


def check_release(seams: tuple[Seam, ...]) -> None:
    """Run `check_unchanged`, before anything else in a command, and print warnings about an untested release and about
    changed sources of other packages."""
    check_unchanged(seams)
    others = (seam for seam in seams if seam.package != UPSTREAM and importlib.util.find_spec(seam.package))
    for warning in filter(None, [untested_release_warning(), *map(describe_change, others)]):
        print(f"warning: {warning}", file=sys.stderr, flush=True)


def check_unchanged(seams: tuple[Seam, ...]) -> None:
    """Hold every row on OpenRLHF against the installed source, without importing it.

    Raises:
        SeamError: OpenRLHF is not installed; or targets are gone or their sources differ from those that the rows were
            written for. The message names each of these rows.
    """
    release = installed_release()
    changes = [change for seam in seams if seam.package == UPSTREAM and (change := describe_change(seam))]
    if changes:
        raise SeamError(
            f"OpenRLHF {release} is installed, and {len(changes)} of {len(seams)} rows do not fit it. Tested: "
            f"{', '.join(TESTED)}. "
            f"pip install 'openrlhf=={RECOMMENDED}', or adapt the rows (docs/develop.md):\n" + "\n".join(changes)
        )


def installed_release() -> str:
    """Version of the installed OpenRLHF.

    Raises:
        SeamError: OpenRLHF is not installed.
    """
    try:
        return importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        raise SeamError(
            "OpenRLHF is not installed. Without a GPU, bash scripts/quickstart.sh sets everything up "
            f"(requirements/cpu.txt). With one (docs/gpus.md):\n{GPU_INSTALL}"
        ) from None


def check_same_as_drivers() -> None:
    """Check, in a Ray worker, that its node has the driver's versions of OpenRLHF and of this package, where the driver
    passed its own on.

    Raises:
        SeamError: it has others.
    """
    own = {"OpenRLHF": (DRIVERS_RELEASE, installed_release()), "openrlhf_ebpo": (DRIVERS_VERSION, __version__)}
    for name, (variable, here) in own.items():
        if (drivers := os.environ.get(variable, here)) != here:
            raise SeamError(
                f"node {socket.gethostname()} has {name} {here}, and the driver's node {drivers}: install the "
                f"same on every node"
            )


def untested_release_warning() -> str | None:
    """A line of warning about a release that is none of TESTED; None about the others."""
    release = installed_release()
    if release in TESTED:
        return None
    return (
        f"OpenRLHF {release} is installed, which this version of openrlhf_ebpo was not tested with. All that is "
        f"replaced in it is unchanged, so it is used; tested: {', '.join(TESTED)} (docs/develop.md)"
    )


def describe_change(seam: Seam) -> str | None:
    """Describe how a target differs from the source that its row was written for; None if it does not."""
    found = source_fingerprint(seam.module, seam.name) if seam.sources else None
    if not seam.sources or found in seam.sources:
        return None
    state = "is gone" if found is None else f"has changed (fingerprint {found}, known: {', '.join(seam.sources)})"
    return f"seam {seam}: upstream's {seam.name} {state}. It is replaced by {seam.replacement} because {seam.why}"


def source_fingerprint(module: str, name: str) -> str | None:
    """Return the fingerprint of a function's or class's source text; None if it does not exist."""
    path = module_path(module)
    if not path.is_file():
        return None
    try:
        source = path.read_text(encoding="utf-8")  # whatever the locale says
        node = parse_module(source)
    except SyntaxError:
        return "no Python"  # fits no row
    for part in name.split("."):
        node = next((n for n in getattr(node, "body", ()) if getattr(n, "name", None) == part), None)
        if node is None:
            return None
    lines = source.encode().split(b"\n")[node.lineno - 1 : node.end_lineno]  # ast.get_source_segment takes 60 ms
    lines[-1] = lines[-1][: node.end_col_offset]
    return hashlib.sha256(b"\n".join(lines)[node.col_offset :]).hexdigest()[:12]


def is_imported(module: str, name: str) -> bool:
    """Return True if the module's first level imports this name from another one."""
    path = module_path(module)
    nodes = parse_module(path.read_text(encoding="utf-8")).body if path.is_file() else ()
    found = (alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names)
    return any(name == (alias.asname or alias.name) for alias in found)


@functools.lru_cache
def parse_module(source: str) -> ast.Module:
    """Parse a module's source once: several rows are of one module."""
    return ast.parse(source)
