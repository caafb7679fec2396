"""Model text on a page of the Space: shown, and nothing else."""

import re

import pytest
from space_runs import EVIL
from tags import Tags

from openrlhf_ebpo.space.mathml import formula
from openrlhf_ebpo.space.text import attribute, harmless, middle_cut, plain, preview, readable, run_name, snippet


MATHML = {
    *("math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msup", "msub", "msubsup"),
    *("mover", "munder", "munderover", "mtable", "mtr", "mtd"),
}


@pytest.mark.parametrize("text", EVIL, ids=range(len(EVIL)))
def test_hostile_text_becomes_text(text):
    found = Tags(harmless(text))
    assert found.tags <= {"wbr"}
    assert found.text == plain(text)
    drawn = Tags(readable(text))
    assert drawn.tags <= MATHML | {"wbr", "span"}
    assert drawn.attributes <= {"class", "display", "width", "linethickness"}
    for shown in (harmless(text), readable(text), snippet(text), attribute(text, 100)):
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


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (r"\frac{1}{2}", "<mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac>"),
        (r"\frac12", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"),
        (r"x^{12}", "<msup><mi>x</mi><mrow><mn>12</mn></mrow></msup>"),
        ("x^12", "<msup><mi>x</mi><mn>1</mn></msup><mn>2</mn>"),
        ("a_i^2", "<msubsup><mi>a</mi><mi>i</mi><mn>2</mn></msubsup>"),
        (r"\sqrt[3]{8}", "<mroot><mrow><mn>8</mn></mrow><mrow><mn>3</mn></mrow></mroot>"),
        (r"\sum_{k}^n", "<munderover><mo>∑</mo><mrow><mi>k</mi></mrow><mi>n</mi></munderover>"),
        (r"\boxed{7}", '<mrow class="boxed"><mrow><mn>7</mn></mrow></mrow>'),
        (r"\text{a<b}", "<mtext>a&lt;b</mtext>"),
        (r"\left(\alpha\right)", "<mo>(</mo><mi>α</mi><mo>)</mo>"),
        ("-1", "<mo>−</mo><mn>1</mn>"),
    ],
)
def test_formulas(source, expected):
    assert formula(source) == f'<math display="inline"><mrow>{expected}</mrow></math>'


@pytest.mark.parametrize(
    "source", [r"\unknown{x}", "{", "}", r"\frac{1}", "a & b", "{" * 60 + "}" * 60, r"\begin{evil}x\end{evil}", "^"]
)
def test_what_is_not_known_stays_as_it_was_written(source):
    assert formula(source) is None
    assert Tags(readable(f"${source}$")).tags <= {"wbr"}


def test_money_is_no_formula():
    assert readable("It costs $5, then $6.") == harmless("It costs $5, then $6.")


def test_names_are_cut_in_the_middle():
    assert middle_cut("short", 10) == "short"
    assert middle_cut("a" * 20 + "seed1", 12) == "aaaa…aaseed1" and len(middle_cut("x" * 99, 12)) == 12
    assert Tags(run_name("<b>" * 20, 12)).tags <= {"span", "wbr"}


def test_a_preview_stands_on_one_line_with_its_formulas():
    shown = preview("Find\n\n\\[x^2\\] and $y" + "y" * 200 + "$", 40)
    assert 'display="inline"' in shown and 'display="block"' not in shown and shown.endswith("…") and "$" not in shown
