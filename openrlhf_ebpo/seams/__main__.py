"""python -m openrlhf_ebpo.seams: every row against what is installed; for moving to another OpenRLHF release."""

from __future__ import annotations

import argparse
import sys
import textwrap

from openrlhf_ebpo.command import command
from openrlhf_ebpo.seams.check import imports, installed_release, source_fingerprint
from openrlhf_ebpo.seams.install import all_seams
from openrlhf_ebpo.seams.releases import TESTED
from openrlhf_ebpo.seams.replacements import Seam

ABOUT = """List every row of what is replaced in OpenRLHF, with its reason, and hold it against the installed packages.

ok: the source is one that the row was written for. by name: outside OpenRLHF, or a name that it imports; only that
it is
there is checked. CHANGED: with the fingerprint to add to seams/releases.py once the row fits both. GONE. The exit
status is 1
if there is a CHANGED or GONE. Nothing is imported; PYTHONPATH=DIR holds the rows against wheels that are unpacked in
DIR
(docs/develop.md)."""
INDENT = " " * 9  # under the name in a row's line


def check(_: argparse.Namespace) -> None:
    print(f"OpenRLHF {installed_release()}; tested: {', '.join(TESTED)}")
    lines = [line(seam) for seam in all_seams()]
    print("\n".join(f"{state}\n{reason(seam)}" for state, seam in zip(lines, all_seams(), strict=True)))
    if different := [each for each in lines if each.startswith(("CHANGED", "GONE"))]:
        sys.exit(f"{len(different)} of {len(lines)} rows do not fit what is installed")


def line(seam: Seam) -> str:
    found = source_fingerprint(seam.module, seam.name)
    if not seam.sources and (found or imports(seam.module, seam.name)):
        return f"by name  {seam}"
    if found is None:
        return f"GONE     {seam}: replaced by {seam.replacement}"
    if found not in seam.sources:
        return f"CHANGED  {seam}: {found}, and known are {', '.join(seam.sources)}; replaced by {seam.replacement}"
    return f"ok       {seam}"


def reason(seam: Seam) -> str:
    """Return what takes the target's place, in which processes, why, and until when."""
    facts = (f"by {seam.replacement}, in {seam.where}", seam.why, f"until {seam.until} {seam.link}")
    wrap = textwrap.TextWrapper(118, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)
    return "\n".join(map(wrap.fill, facts))


main = command("python -m openrlhf_ebpo.seams", ABOUT, lambda parser: None, check)

if __name__ == "__main__":
    main()
