"""scripts/audit.py: which pins count, and which advisories apply to them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADVISORY = """
id: PYSEC-1
aliases: [CVE-1]
details: |
  reads
  too far
affected:
- package: {ecosystem: PyPI, name: demo-name}
  ranges:
  - {type: GIT, events: [{introduced: "0"}]}
  - {type: ECOSYSTEM, events: [{introduced: "1.0"}, {fixed: "1.4.2"}, {introduced: "2.0"}, {last_affected: "2.1"}]}
  versions: ["0.5"]
"""


def audit(*argv) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "scripts" / "audit.py", *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def database(tmp_path) -> Path:
    folder = tmp_path / "database" / "vulns" / "demo-name"
    folder.mkdir(parents=True)
    (folder / "PYSEC-1.yaml").write_text(ADVISORY)
    (folder / "PYSEC-2.yaml").write_text("withdrawn: 2023-11-08T00:00:00Z\n" + ADVISORY.replace("PYSEC-1", "PYSEC-2"))
    return tmp_path / "database"


@pytest.mark.parametrize(
    ("version", "affected"),
    [("0.5", 1), ("0.9", 0), ("1.0", 1), ("1.4.2rc1", 1), ("1.4.2", 0), ("1.10", 0), ("2.1", 1), ("2.1.1", 0)],
)
def test_an_advisory_applies_to_versions_it_names_and_to_its_ranges(database, tmp_path, version, affected):
    (tmp_path / "pins.txt").write_text(f"# names\nDemo_Name[extra]=={version}  # why\nother>=1\n\n")
    done = audit(database, tmp_path / "pins.txt")
    assert done.returncode == affected, done.stderr
    assert done.stdout.splitlines()[-1] == f"1 pins, {affected} advisories apply"
    assert ("demo-name " + version + ": PYSEC-1 CVE-1: reads too far" in done.stdout) == bool(affected)


def test_a_pin_counts_under_the_pythons_of_its_marker(tmp_path):
    text = 'a==1; python_version >= "3.11"\na==2; python_version < "3.11"\nb==3 --hash=sha256:0a\nc>=4\n'
    (tmp_path / "pins.txt").write_text(text)
    assert audit("--pins", "3.10", tmp_path / "pins.txt").stdout.split() == ["a==2", "b==3"]
    assert audit("--pins", "3.13", tmp_path / "pins.txt").stdout.split() == ["a==1", "b==3"]


def test_something_else_than_the_database_is_refused(tmp_path):
    done = audit(tmp_path, ROOT / "requirements" / "cpu.txt")
    assert done.returncode == 1 and "not a checkout of the advisory database" in done.stderr
