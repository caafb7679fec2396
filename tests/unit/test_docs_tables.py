"""scripts/docs_tables.py: the table of estimators is what the code says, and the README counts them."""

import re
import subprocess
import sys
from pathlib import Path

from openrlhf_ebpo.estimator.registry import ESTIMATORS, VARIANTS

ROOT = Path(__file__).parents[2]
PAGES = {"estimator.md": "| `ebpo` |"}


def call(*argv):
    argv = [sys.executable, ROOT / "scripts" / "docs_tables.py", *argv]
    return subprocess.run(argv, capture_output=True, text=True)


def test_the_pages_say_what_the_code_says():
    assert (done := call("--check")).returncode == 0, done.stderr


def test_pages_that_say_something_else_are_named_and_can_be_written_again(tmp_path):
    right = {tmp_path / page: (ROOT / "docs" / page).read_text() for page in PAGES}
    for page, text in right.items():
        page.write_text(text.replace(PAGES[page.name], "| `older` |", 1))
    done = call("--check", "--docs", tmp_path)
    assert done.returncode == 1 and any(f"{page} is not what" in done.stderr for page in right)
    assert call("--write", "--docs", tmp_path).returncode == 0
    assert {page: page.read_text() for page in right} == right


def test_a_page_without_the_two_lines_is_left_alone(tmp_path):
    for page in PAGES:
        (tmp_path / page).write_text("No table.\n")
    done = call("--write", "--docs", tmp_path)
    assert done.returncode and "needs these two lines" in done.stderr
    assert {(tmp_path / page).read_text() for page in PAGES} == {"No table.\n"}


def test_the_readme_counts_the_estimators_of_the_registry():
    page = (ROOT / "README.md").read_text()
    shown = set(
        re.findall(r"^\| `([\w.]+)` \|", page.partition("**Which estimator**")[2].partition("**Where")[0], re.M)
    )
    assert len(shown) == 3 and shown <= {*ESTIMATORS, *VARIANTS}
    assert f"\n{len({*ESTIMATORS, *VARIANTS} - shown)} others by name" in page
