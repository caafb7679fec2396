"""Model text on a page of the Space: shown, and nothing else."""

import re

import pytest
from space_runs import EVIL
from tags import Tags

from openrlhf_ebpo.space.text import attribute, harmless, plain


@pytest.mark.parametrize("text", EVIL, ids=range(len(EVIL)))
def test_hostile_text_becomes_text(text):
    found = Tags(harmless(text))
    assert found.tags <= {"wbr"}
    assert found.text == plain(text)
    for shown in (harmless(text), attribute(text, 100)):
        assert not set("${}`\\") & set(re.sub(r"&#\d+;", "", shown)), "nothing that a template reads"


def test_invisible_and_turning_characters_are_shown():
    shown = plain("a\u202eb\u200bc\x00d\ufeffe\U000e0041\r\nf\tg\u2028")
    assert shown == "a⟨U+202E⟩b⟨U+200B⟩c⟨U+0000⟩d⟨U+FEFF⟩e⟨U+E0041⟩\nf\tg⟨U+2028⟩"
    assert plain("e\u0301") == "e\u0301" and len(plain("Z" + "\u0301" * 400)) == 5
    assert plain("日本語 العربية 👩") == "日本語 العربية 👩"


def test_long_text_is_cut_and_says_so_and_long_words_may_break():
    shown = harmless("A" * 5_000_000)
    assert "4,980,000 more characters" in shown and len(shown) < 25_000
    assert max(map(len, re.split("<wbr>", shown.partition("<span")[0]))) == 60
    assert Tags(harmless("B" * 130)).text == "B" * 130


def test_an_attribute_gives_back_exactly_what_went_in():
    text = '{"run": "a\\"b\'<&>${}` \\\\ c"}' + "x" * 300
    parser = Tags(f'<b title="{attribute(text)}">')
    assert parser.attributes == {"title"}
    seen = []
    parser.handle_starttag = lambda tag, attrs: seen.append(attrs)
    parser.feed(f'<b title="{attribute(text)}">')
    assert seen == [[("title", text)]]
