"""python -m openrlhf_ebpo.seams: every row against what is installed; for moving to another OpenRLHF release."""

from __future__ import annotations

import argparse
import sys

from openrlhf_ebpo.command import command
from openrlhf_ebpo.seams.check import OPENRLHF_VERSION, installed_version, source_fingerprint
from openrlhf_ebpo.seams.install import all_seams
from openrlhf_ebpo.seams.rows import OFFLINE_SEAMS, Seam

ABOUT = """Hold every row of what is replaced in OpenRLHF against the installed packages.

ok: the source is the one that the row was written for. by name: outside OpenRLHF, or a name that it imports; only its
existence is checked, when the row is applied. CHANGED: with the new fingerprint, for the row once it has been adapted. GONE.
The exit status is 1 if there is a CHANGED or GONE. Nothing of OpenRLHF is imported (docs/upgrading.md)."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(args: argparse.Namespace) -> None:
    print(f"OpenRLHF {installed_version()}; the rows are written for {OPENRLHF_VERSION}")
    lines = [line(seam) for seam in (*all_seams(), *OFFLINE_SEAMS)]
    print("\n".join(lines))
    if different := [each for each in lines if each.startswith(("CHANGED", "GONE"))]:
        sys.exit(f"{len(different)} of {len(lines)} rows do not fit what is installed")


def line(seam: Seam) -> str:
    if seam.source is None:
        return f"by name  {seam}"
    found = source_fingerprint(seam.module, seam.name)
    if found is None:
        return f"GONE     {seam}: replaced by {seam.replacement}"
    if found != seam.source:
        return f"CHANGED  {seam}: {found}, and the row has {seam.source}; replaced by {seam.replacement}"
    return f"ok       {seam}"


main = command("python -m openrlhf_ebpo.seams", ABOUT, add_flags, run)

if __name__ == "__main__":
    main()
