"""python -m openrlhf_ebpo.upstream: every row against what is installed; for moving to another OpenRLHF release."""

from __future__ import annotations

import argparse
import sys
import textwrap

from openrlhf_ebpo.command import command
from openrlhf_ebpo.upstream.check import installed_release, is_imported, source_fingerprint
from openrlhf_ebpo.upstream.install import REPLACEMENTS, all_seams
from openrlhf_ebpo.upstream.releases import TESTED
from openrlhf_ebpo.upstream.replacements import KINDS, Seam

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
    seams = all_seams()
    states = [state(seam) for seam in seams]
    for seam, word in zip(seams, states, strict=True):
        print(f"{word:<8} {seam}  {fingerprint(seam)}  {seam.process}  {seam.kind}\n{reason(seam)}")
    if different := [word for word in states if word in ("CHANGED", "GONE")]:
        sys.exit(f"{len(different)} of {len(seams)} rows do not fit what is installed")


def state(seam: Seam) -> str:
    found = source_fingerprint(seam.module, seam.name)
    if not seam.sources and (found or is_imported(seam.module, seam.name)):
        return "by name"
    if found is None:
        return "GONE"
    return "ok" if found in seam.sources else "CHANGED"


def fingerprint(seam: Seam) -> str:
    """Return the installed source's, "-" without one; of a changed one the known ones too."""
    found = source_fingerprint(seam.module, seam.name) or "-"
    known = f" (known: {', '.join(seam.sources)})" if seam.sources and found not in seam.sources else ""
    return found + known


def reason(seam: Seam) -> str:
    """Describe the replacement of a target, with its reason and when it can go."""
    facts = (f"by {seam.replacement} {seam.condition}", seam.why, f"until {seam.until} {seam.link}")
    wrap = textwrap.TextWrapper(118, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)
    return "\n".join(map(wrap.fill, facts))


main = command("python -m openrlhf_ebpo.upstream", ABOUT, lambda parser: None, print_rows)

if __name__ == "__main__":
    main()
