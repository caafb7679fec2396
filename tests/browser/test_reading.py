"""Reading answers: formulas, hostile texts, long texts, marks. One page for all of it."""

import json

import formulas
import pyarrow.parquet as pq
import pytest

NINE = 10_000
HOSTILE = {
    "markup": (
        '<script>window.hacked=1</script><img src=x onerror="window.hacked=1"><svg onload=alert(1)><iframe src=/>'
    ),
    "style": (
        "<style>*{display:none}</style><div style='position:fixed;inset:0'>x</div><link rel=stylesheet "
        "href=//evil.test>"
    ),
    "comment": "<!-- <img src=x onerror=alert(1)> --> <![CDATA[<b>]]> <?php echo 1 ?>",
    "links": "[a](javascript:alert(1)) ![i](http://evil.test/i.png) <http://evil.test> [r]: http://evil.test\n\n[r] http://evil.test",
    "href": r"$\href{javascript:alert(1)}{x}$ $\url{http://evil.test}$",
    "includegraphics": r"$\includegraphics{http://evil.test/i.png}$",
    "html commands": (
        r"$\htmlClass{masthead}{x}$ $\htmlId{pages}{x}$ $\htmlStyle{position:fixed}{x}$ $\htmlData{set=1}{x}$ "
        r"$\class{x}{y}$"
    ),
    "text in a formula": (
        r'$\text{<img src=x onerror="alert(1)">}$ ' r"$\mathrm{</math><script>alert(1)</script>}$ $\unknown{<b>}$"
    ),
    "sizes": r"$\rule{9999em}{9999em}$ $\hspace{-9999em}x$ $\raisebox{9999em}{x}$ $\kern9999em x$",
    "colours": r"$\color{red;position:fixed}x$ $\colorbox{url(http://evil.test)}{x}$",
    "mglyph": "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)></style></mglyph></table></mtext></math>",
    "endless macro": r"$\def\a{\a\a}\a$",
    "growing macros": "$"
    + "".join(rf"\def\{a}{{\{b}\{b}\{b}}}" for a, b in zip("abcdefghijklmn", "bcdefghijklmno", strict=True))
    + r"\a$",
    "brackets of formulas": "\\(" * NINE,
    "brackets of formulas, closed": "\\(" * NINE + "x" + "\\)" * NINE,
    "brackets": "[" * NINE,
    "links in links": "[a](" * NINE,
    "images": "![" * NINE,
    "quotes": "> " * NINE + "x",
    "quotes in lines": ">\n" * NINE,
    "dollars": "$" * NINE,
    "dollars apart": "$a " * NINE,
    "braces": "$" + "{" * NINE + "$",
    "fractions": "$" + r"\frac{" * 3000 + "$",
    "bare fractions": r"\frac{" * 5000,
    "roots": "$$" + r"\sqrt{" * 1500 + "x" + "}" * 1500 + "$$",
    "stars": "*a **b " * 4000,
    "underscores": "_a" * NINE,
    "code": "`" * 999 + " ".join("`" * i for i in range(140)),
    "fences": "```\n" * 5000,
    "backslashes": "\\" * NINE,
    "environments": r"\begin{align}" * 2000,
    "matrix": r"\[\begin{matrix}" + "&" * 4000 + r"\end{matrix}\]",
    "table": "|" * 9000 + "\n" + "|-" * 4500,
    "lists": "- " * NINE,
    "entities": "&lt;img&gt; &#60;b&#62; " * 2000,
    "template": "${alert(1)} {{7*7}} `x` " * 500,
    "control": "\u0000\u202e\u200b\ue000" + "1\ue001" * 100,
    "one word": "A" * 100_000,
}


@pytest.fixture(scope="module")
def served(app, runs):
    """(address, long answers)"""
    rows = pq.read_table(runs / "long" / "rollouts" / "step-000002.parquet").to_pylist()
    return app, [row["response"] for row in rows[:6]]


@pytest.fixture(scope="module")
def page(contexts, served):
    """Nothing may leave the app, open a dialog, or throw."""
    page, seen = contexts("desk").new_page(), []
    page.set_default_timeout(60_000)
    page.on("request", lambda r: r.url.startswith((served[0], "data:", "blob:")) or seen.append(r.url))
    page.on("dialog", lambda d: (seen.append(d.message), d.dismiss()))
    page.on("pageerror", lambda e: seen.append(str(e)))
    yield page
    page.close()
    assert not seen, seen


@pytest.fixture
def look(page, served):
    def at(query: str):
        page.goto(f"{served[0]}/?tab=samples&runs=long&at=2.0{query}", wait_until="commit")
        page.wait_for_selector(".answer .marks:not(:empty)")
        settled(page)
        return page

    return at


def settled(page):
    page.wait_for_selector(".answer .piece.md")
    page.wait_for_function("() => !document.querySelector('.piece.waiting')")


RENDERED = """async texts => {
  const shown = await Promise.all(texts.map(text => window.space.reader.render(text, false, () => true)));
  return shown.map(html => {
    const box = document.createElement("div");
    box.className = "reading";
    if (html !== null) box.append(window.space.clean(html));
    const said = box.cloneNode(true);
    said.querySelectorAll("math").forEach(one => one.remove());
    return {whole: html !== null, drawn: box.querySelectorAll("math").length,
    sources: box.querySelectorAll(".source").length,
      inside: [...box.querySelectorAll("math")].map(one => one.textContent).join(" "), said: said.textContent,
      text: box.textContent};
  });
}"""


def test_formulas_as_models_write_them(look):
    page = look("")
    for text, found in zip(formulas.RENDERED, page.evaluate(RENDERED, formulas.RENDERED), strict=True):
        assert found["drawn"] and not found["sources"], (text, found)
        assert not set("$\\") & set(found["said"] + found["inside"]) or r"\$" in text, (text, found)
    for text, found in zip(formulas.TEXT, page.evaluate(RENDERED, formulas.TEXT), strict=True):
        assert not found["drawn"], (text, found)
    parts = page.evaluate(RENDERED, [text for text, _ in formulas.PARTLY])
    for (text, left), found in zip(formulas.PARTLY, parts, strict=True):
        assert found["drawn"] and left in found["text"], (text, found)


@pytest.mark.parametrize("mark", ["> ", "- ", "1. ", "> - "])
def test_what_is_nested_too_deep_to_be_set_stays_as_it_was_written(look, mark):
    (found,) = look("").evaluate(RENDERED, [f"before\n\n{mark * 40}the $x^2$ *end*\n\nafter"])
    assert "the $x^2$ *end*" in found["said"]
    assert found["said"].strip().startswith("before") and found["said"].strip().endswith("after")


SHOWN = """async text => {
  const html = await window.space.reader.render(text, false, () => true);
  const box = document.querySelector(".answer .reading").appendChild(document.createElement("div"));
  box.className = "piece md";
  if (html !== null) box.append(window.space.clean(html));
  else box.textContent = text;
  const names = [...new Set([...box.querySelectorAll("*")].flatMap(n => [n.localName,
  ...n.getAttributeNames().map(a => "@" + a)]))];
  const styles = [...box.querySelectorAll("[style]")].map(n => n.getAttribute("style"));
  await new Promise(requestAnimationFrame);
  const masthead = document.elementFromPoint(60, 30).closest(".masthead, .top-row") !== null;
  const wide = document.documentElement.scrollWidth;
  box.remove();
  return {names, styles, masthead, wide};
}"""
ALLOWED = """
    p br hr strong em s code pre blockquote ul ol li table thead tbody tr th td span div math mrow mi mn mo ms mtext
    mspace mfrac msqrt mroot msub msup msubsup mover munder munderover mtable mtr mtd mpadded mphantom menclose
    mstyle
"""
FORBIDDEN = {"@href", "@src", "@id", "@name", "@onload", "@onerror", "@srcset", "@action", "@data-set"}


def test_hostile_texts_make_no_foreign_element_and_ask_for_nothing(look):
    page = look("")
    page.evaluate("scrollTo(0, 0)")
    for name, text in HOSTILE.items():
        found = page.evaluate(SHOWN, text)
        names = {each for each in found["names"] if each[0] != "@"}
        assert names <= {*ALLOWED.split()}, (name, names - {*ALLOWED.split()})
        assert not FORBIDDEN & set(found["names"]), (name, found["names"])
        assert not any(word in style for style in found["styles"] for word in ("position", "url", "999")), (name, found)
        assert found["masthead"] and found["wide"] <= 1440, name
    assert page.evaluate("window.hacked") is None


CLEANED = """html => {
  const box = document.createElement("div");
  box.append(window.space.clean(html));
  return box.innerHTML;
}"""


def test_the_sanitiser_stands_alone(look):
    """A fault of a renderer brings nothing but prose, sizes and classes of formulas."""
    page = look("")
    cases = {
        '<a href="javascript:alert(1)">x</a>': "x",
        '<img src=x onerror=alert(1)><b onclick="alert(1)">y</b>': "y",
        ('<p style="position:fixed;inset:0;color:#ff0000" class="masthead tex" id="a" data-set="{}">z</p>'): (
            '<p style="color:#ff0000" class="tex">z</p>'
        ),
        '<span style="margin-left:-9999em;padding:2pt">w</span>': '<span style="padding:2pt">w</span>',
        '<math><mspace width="9999em"></mspace><mi href="javascript:1" xlink:href="x">v</mi></math>': "<math><mspace></mspace><mi>v</mi></math>",  # noqa: E501
        "<svg><script>alert(1)</script></svg><style>*{}</style><form><input name=x></form>": "",
    }
    for html, expected in cases.items():
        assert page.evaluate(CLEANED, html) == expected


def test_a_text_that_takes_too_long_is_shown_as_it_was_written_and_the_next_is_rendered(contexts, served):
    """The worker that hangs is ended at its limit: here one that hangs on a word."""
    page = contexts("desk").new_page()
    hang = (
        "\nconst kind = self.onmessage; self.onmessage = (e) => { if (e.data.text.includes('needle')) for (;;); "
        "kind(e); };"
    )

    def served_worker(route):
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text() + hang)

    page.route("**/reader/worker.js*", served_worker)
    page.goto(f"{served[0]}/?tab=samples&runs=long&at=2.0&answer=2", wait_until="commit")
    page.wait_for_selector(".answer .piece.plain", timeout=60_000)
    assert "Answer: needle" in page.locator(".answer .piece.plain").inner_text()
    page.locator("body").press("d")
    page.wait_for_function("() => document.querySelector('.answer h2').innerText.includes('Answer 3')")
    page.wait_for_selector(".answer .thought[open] math")
    page.close()


def test_a_long_answer_is_read_to_its_end(look, served):
    page, answers = look("&answer=2"), served[1]
    said = page.locator(".answer .reading").inner_text()
    assert "Step 0." in said and "needle" in said and "characters are left out" in said
    before = page.locator(".answer .piece").count()
    page.get_by_role("button", name="Show 32,000 more").click()
    page.wait_for_function(f"() => document.querySelectorAll('.answer .piece').length > {before} + 3")
    assert page.locator(".answer .gap").count() == 1
    page.get_by_role("button", name="Show all").click()
    page.wait_for_selector(".answer .gap", state="detached")
    settled(page)
    steps = answers[1].count("**Step")
    reading = page.locator(".answer .reading")
    assert reading.locator("strong").count() == steps, "no passage is lost, none comes twice"
    assert reading.locator(".piece pre").count() == steps, "no code was cut"
    assert reading.locator(".tex.block").count() == 2 * steps and reading.locator(".source").count() == 0
    page.get_by_role("button", name="Source").click()
    page.wait_for_selector(".tools [aria-pressed=true]")
    page.get_by_role("button", name="Show all").click()
    page.wait_for_selector(".answer .gap", state="detached")
    texts = page.locator(".answer .part pre").evaluate_all("all => all.map(e => e.textContent).join('')")
    assert texts == answers[1]


def test_thoughts_are_folded_and_ends_are_said(look):
    page = look("")
    thought = page.locator(".answer details.thought")
    assert " characters" in thought.inner_text() and not thought.locator(".piece").count()
    thought.locator("summary").click()
    page.wait_for_selector(".answer .thought .piece.md")
    assert page.locator(".answer .role.end").inner_text() == "end of turn"
    prompt = page.locator(".prompt").inner_text()
    assert "system" in prompt and "user" in prompt and "im_start" not in prompt
    assert "im_start" not in page.locator(".groups").inner_text()
    page.locator(".strip button").nth(2).click()
    page.wait_for_function("() => document.querySelector('.answer h2').innerText.includes('Answer 3')")
    said = page.locator(".answer").inner_text()
    assert "never closed" in said and "Cut off at the length limit" in said
    page.locator("body").press("a")
    page.wait_for_function("() => document.querySelector('.answer h2').innerText.includes('Answer 2')")


IN_SIGHT = """name => {
  const { top, bottom } = [...CSS.highlights.get(name)][0].getBoundingClientRect();
  return top >= 0 && bottom <= innerHeight;
}"""
MARKED = "name => [...CSS.highlights.get(name)].map(range => range.toString())"


def test_the_answer_and_the_expected_one_are_marked(look, served):
    page = look("&answer=4")
    label = page.locator(".prompt .label code").inner_text()
    assert page.locator(".marks .given code").inner_text() == page.locator(".marks .gold code").inner_text() == label
    assert page.evaluate(MARKED, "given") == [label] and label in page.evaluate(MARKED, "gold")
    page.evaluate("scrollTo(0, 0)")
    page.get_by_role("button", name="Show where the answer is given").click()
    page.wait_for_function(IN_SIGHT, arg="given")
    page.locator(".strip button").nth(1).click()  # says "Answer: …", in no box
    page.wait_for_function("() => document.querySelector('.marks .given code')?.innerText.startsWith('needle')")


def test_a_search_goes_from_hit_to_hit_and_into_what_is_left_out(look, served):
    page = look("&text=Step+4")
    total = served[1][0].count("Step 4")
    page.wait_for_function("() => document.querySelector('.answer .hits span').innerText.startsWith('hit 1 of')")
    assert page.locator(".answer .hits span").inner_text() == f"hit 1 of {total}"
    assert set(page.evaluate(MARKED, "hit")) == {"Step 4"} and len(page.evaluate(MARKED, "hit-now")) == 1
    page.wait_for_function(IN_SIGHT, arg="hit-now")
    for i in range(2, 6):
        page.locator("body").press("n")
        page.wait_for_function(f"() => document.querySelector('.answer .hits span').innerText.startsWith('hit {i} of')")
    page.locator("body").press("p")
    page.wait_for_function("() => document.querySelector('.answer .hits span').innerText.startsWith('hit 4 of')")
    assert json.loads(page.locator(".tile[aria-current]").get_attribute("data-set"))["answer"] == 1
