"""Pinned requirements, and what a checkout of PyPA's advisory database says about them.

python scripts/audit.py DIR FILE…           the advisories that apply; exit status 1 if there are some
python scripts/audit.py --pins 3.11 FILE…   the pins that count under this Python, one a line, without markers
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pins", metavar="PYTHON")
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args()
    if options.pins:
        print(*sorted({f"{name}=={version}" for name, version in pins(options.paths, options.pins)}), sep="\n")
        return
    database, *files = options.paths
    if not (database / "vulns").is_dir():
        sys.exit(f"error: {database} is not a checkout of the advisory database: it has no folder vulns")
    wanted = sorted(set(pins(files)))
    found = [line for name, version in wanted for line in applying(database / "vulns" / name, version)]
    print(*found, f"{len(wanted)} pins, {len(found)} advisories apply", sep="\n")
    sys.exit(bool(found))


def pins(files: Iterable[Path], python: str | None = None) -> Iterator[tuple[str, str]]:
    """Names and versions of the lines NAME==VERSION, of those whose marker fits this Python if one is given."""
    for line in (line for file in files for line in file.read_text().splitlines()):
        try:
            requirement = Requirement(line.partition("#")[0].partition(" --hash=")[0].strip())
        except InvalidRequirement:
            continue  # a comment, or empty
        if python and requirement.marker and not requirement.marker.evaluate(_under(python)):
            continue
        exact = [each.version for each in requirement.specifier if each.operator == "=="]
        yield from ((canonicalize_name(requirement.name), version) for version in exact)


def _under(python: str) -> dict[str, str]:
    return {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}


def applying(folder: Path, version: str) -> Iterator[str]:
    """A line for each advisory in the folder of a name that the version is affected by."""
    import yaml

    for path in sorted(folder.glob("*.yaml")):
        advisory = yaml.safe_load(path.read_text())
        if not advisory.get("withdrawn") and any(affects(each, version) for each in advisory.get("affected", ())):
            text = " ".join(str(advisory.get("summary") or advisory.get("details") or "").split())
            names = " ".join([advisory["id"], *advisory.get("aliases", ())])
            yield f"{folder.name} {version}: {names}: {text[:160]}"


def affects(entry: dict, version: str) -> bool:
    """True if an entry of `affected` (OSV schema) names the version, or has it in a range."""
    ranges = (each["events"] for each in entry.get("ranges", ()) if each["type"] == "ECOSYSTEM")
    return version in entry.get("versions", ()) or any(within(events, Version(version)) for events in ranges)


def within(events: Iterable[dict], version: Version) -> bool:
    inside = False
    for event in events:  # in order of version
        if "introduced" in event and (event["introduced"] == "0" or version >= Version(event["introduced"])):
            inside = True
        if ("fixed" in event and version >= Version(event["fixed"])) or (
            "last_affected" in event and version > Version(event["last_affected"])
        ):
            inside = False
    return inside


if __name__ == "__main__":
    main()
