"""CITATION.cff has what the Citation File Format 1.2.0 asks for, and says the same as the package."""

import re
from pathlib import Path

import pytest
import yaml

from openrlhf_ebpo import __version__

ROOT = Path(__file__).parents[2]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
# Those of the format's schema that are used here: it allows no others.
SOFTWARE = {
    "cff-version",
    "message",
    "type",
    "title",
    "abstract",
    "version",
    "license",
    "authors",
    "keywords",
    "references",
}
REFERENCE = {"type", "title", "authors", "year", "month", "date-published", "identifiers", "url"}
PERSON, ENTITY = {"given-names", "family-names"}, {"name"}


def test_the_software_is_described_as_the_format_asks():
    assert {"cff-version", "message", "title", "authors"} <= set(CITATION) <= SOFTWARE
    assert CITATION["cff-version"] == "1.2.0" and CITATION["type"] == "software"
    assert CITATION["version"] == __version__
    assert f'license = "{CITATION["license"]}"' in (ROOT / "pyproject.toml").read_text()


def test_the_paper_is_the_one_that_the_pages_name():
    (paper,) = CITATION["references"]
    assert {"type", "title", "authors"} <= set(paper) <= REFERENCE
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", paper["date-published"])  # a text: YAML alone would make a date of it
    assert paper["date-published"].startswith(f"{paper['year']}-{paper['month']:02}")
    assert paper["url"] in (ROOT / "README.md").read_text()
    assert [i["value"] for i in paper["identifiers"]] == [f"arXiv:{paper['url'].rpartition('/')[2]}"]


@pytest.mark.parametrize("authors", [CITATION["authors"], CITATION["references"][0]["authors"]])
def test_every_author_is_a_person_or_an_entity(authors):
    assert authors and all(set(author) in (PERSON, ENTITY) for author in authors)
    assert all(isinstance(name, str) and name.strip() for author in authors for name in author.values())
