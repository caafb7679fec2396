"""python -m openrlhf_ebpo.upstream: every row against what is installed; for moving to another OpenRLHF release."""

from __future__ import annotations

import argparse
import sys
import textwrap

from openrlhf_ebpo.command import command
from openrlhf_ebpo.upstream.check import installed_release, is_imported, source_fingerprint
from openrlhf_ebpo.upstream.install import REPLACEMENTS, all_seams
from openrlhf_ebpo.upstream.releases import TESTED
from openrlhf_ebpo.upstream.replacements import KINDS

KIND_LINES = "\n".join(f"  {kind:<10} {reason}" for kind, reason in KINDS.items())
ABOUT = f"""List every replacement in OpenRLHF and its stack, and compare its target with the installed package.

A row shows its state, the target, its fingerprint, the process in which it runs and its kind; below it the replacement,
the reason, and when it can go.

states (the exit status is 1 if a row is CHANGED or GONE):
  ok         the installed source is one that the row was written for
  by name    only the existence of the name is checked: torch.cuda, and names that OpenRLHF imports
  CHANGED    another source: add its fingerprint to upstream/releases.py once the row fits both (docs/develop.md)
  GONE       the target does not exist

kinds:
{KIND_LINES}

examples:
  python -m openrlhf_ebpo.upstream                            the installed packages, without importing them
  PYTHONPATH=DIR python -m openrlhf_ebpo.upstream             wheels that are unpacked in DIR
  {REPLACEMENTS}=estimator python -m openrlhf_ebpo.upstream   only rows of this kind; also for a training
"""
INDENT = " " * 9  # under the name in a row's line


def print_rows(_: argparse.Namespace) -> None:
    print(f"OpenRLHF {installed_release()}; tested: {', '.join(TESTED)}")
    wrap = textwrap.TextWrapper(118, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)
    seams, different = all_seams(), 0
    for seam in seams:
        found, known = source_fingerprint(seam.module, seam.name), ""
        if not seam.sources and (found or is_imported(seam.module, seam.name)):
            state = "by name"
        elif found in seam.sources:
            state = "ok"
        else:
            state, different = "CHANGED" if found else "GONE", different + 1
            known = f" (known: {', '.join(seam.sources)})" if seam.sources else ""
        print(f"{state:<8} {seam}  {found or '-'}{known}  {seam.process}  {seam.kind}")
        facts = (f"by {seam.replacement} {seam.condition}", seam.why, f"until {seam.until} {seam.link}")
        print("\n".join(map(wrap.fill, facts)))
    if different:
        sys.exit(f"{different} of {len(seams)} rows do not fit what is installed")


main = command("python -m openrlhf_ebpo.upstream", ABOUT, lambda parser: None, print_rows)

if __name__ == "__main__":
    main()
