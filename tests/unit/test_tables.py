"""scripts/tables.py: the tables in the pages are what the code says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    "estimator.md": "| `ebpo` |",
    "results.md": "| regime |",
}


def call(*argv):
    argv = [sys.executable, ROOT / "scripts" / "tables.py", *argv]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def test_the_pages_say_what_the_code_says():
    assert (done := call("--check")).returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_says_something_else_is_named_and_can_be_written_anew(page, tmp_path):
    for name in PAGES:
        shutil.copy(ROOT / "docs" / name, tmp_path)
    whole = (tmp_path / page).read_text()
    (tmp_path / page).write_text(whole.replace(PAGES[page], "| `older` |"))
    done = call("--check", "--docs", tmp_path)
    assert done.returncode == 1 and f"{tmp_path / page} is not what the code says" in done.stderr
    assert call("--write", "--docs", tmp_path).returncode == 0 and (tmp_path / page).read_text() == whole
    (tmp_path / page).write_text(re.sub("<!--.*-->", "", whole))
    done = call("--write", "--docs", tmp_path)
    assert "needs these two lines" in done.stderr and "<!--" not in (tmp_path / page).read_text()
