"""Every relative link of the pages leads to an existing file, and to a heading that it has."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("space/*.md"), *ROOT.glob("examples/**/*.md")]
)
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1[^\n]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|\b(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)


def links(text: str) -> Iterator[str]:
    """Targets that are relative, in the order of the page; what stands in code is none."""
    for match in LINK.finditer(CODE.sub("", FENCE.sub("", text))):
        target = match[1] or match[2]
        if not re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE):
            yield unquote(target)


def anchors(text: str) -> set[str]:
    """Names of the headings, as GitHub makes them: a repeated one gets -1, -2, …"""
    seen: Counter[str] = Counter()
    found = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def broken(page: Path, root: Path = ROOT) -> Iterator[str]:
    for link in links(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        place = target.relative_to(root).as_posix() if target.is_relative_to(root) else f"{target}"
        if not target.is_relative_to(root) or not target.exists():
            yield f"{link}: there is no {place}"
        elif anchor and anchor not in anchors(target.read_text()):
            yield f"{link}: {place} has no heading #{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    assert list(broken(page)) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` c: d, e\n## Twice\n## Twice\n[ok](#a-b-c-d-e) [ok](page.md#twice-1) "
        "[web](https://a.test/x.md#y) `[no](a.md)`\n"
        "```\n[no](b.md)\n# no heading\n```\n[gone](c.md) [no heading](page.md#no-heading) ![picture](d.png) "
        "[out](../e.md)\n"
    )
    found = [line.partition(":")[0] for line in broken(page, tmp_path)]
    assert found == ["c.md", "page.md#no-heading", "d.png", "../e.md"]


def test_every_page_that_code_names_is_there():
    """In messages, helps, comments and scripts, with its heading."""
    folders = ("openrlhf_ebpo", "eval", "space", "scripts", "research", "examples", "requirements", "tests")
    kinds = {".py", ".sh", ".txt", ".in", ".md", ".json"}
    files = [path for folder in folders for path in ROOT.joinpath(folder).rglob("*") if path.suffix in kinds]
    named = {link for path in files for link in re.findall(r"(?<![\w/])docs/(\w+\.md(?:#[\w-]+)?)", path.read_text())}
    pages = {
        path.name: {path.name, *(f"{path.name}#{each}" for each in anchors(path.read_text()))}
        for path in ROOT.glob("docs/*.md")
    }
    assert len(named) > 5 and named - set().union(*pages.values()) == set()
