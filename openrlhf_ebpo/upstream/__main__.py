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

ABOUT = f"""List every replacement of this machine and hold it against the installed packages.

A line has: whether it fits, the target, its fingerprint, the process in which it runs, its kind. Below it: what is put
there, why, and until when.

ok: the source is one that the row was written for. by name: only the name's existence is checked, of torch.cuda and of
names that OpenRLHF imports. CHANGED: add the fingerprint to upstream/releases.py once the row fits both. GONE: no such
target. The exit status is 1 if there is a CHANGED or GONE. Kinds: {"; ".join(f"{k}: {v}" for k, v in KINDS.items())}.
Nothing is imported; PYTHONPATH=DIR holds the rows against wheels that are unpacked in DIR (docs/develop.md).
{REPLACEMENTS}=estimator, for a training too, takes that kind alone."""
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
