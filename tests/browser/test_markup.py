"""Runs whose every string is markup, on every page: nothing of it becomes an element, runs, asks, or leaves the
page."""

import shutil
from urllib.parse import quote

import pytest

from openrlhf_ebpo.space.links import PARAMETERS
from openrlhf_ebpo.space.pages import PAGES

FOREIGN = (
    "document.querySelectorAll('[data-foreign], [onerror], .plot a, .plot b, .own img, .own script, "
    '.own a:not(.csv-link[href^="./space/panel.csv?metric="])\').length'
)
DRAWN = ".panel[data-drawn]"
NAME = "<a href=x data-foreign>1&lt;b&gt;"  # a run's folder; its name is in Plotly's labels
ONE = quote(NAME)
ANSWERED = "body[data-answered]"


@pytest.fixture(scope="module")
def marked(serve, tmp_path_factory):
    """An app over two marked runs and one whose values also have other types."""
    import marked_runs

    folder = tmp_path_factory.mktemp("marked")
    for seed, name in enumerate((NAME, "2")):
        marked_runs.marked_run(folder / name, seed)
    broken = shutil.copytree(folder / NAME, folder / "broken")
    for name in ("rewards are strings", "numbers are strings", "a reward beyond floats", "metrics are strings"):
        marked_runs.BROKEN[name](broken)
    return serve("--runs", str(folder))


@pytest.fixture
def look(visit, marked):
    """look(query, ready) -> page, as soon as it shows something; at the end no page has anything foreign (and as for
    all
    visits: no dialog, no other host asked, no error)."""
    pages = []

    def open_page(query: str, ready: str):
        page = visit(query, base=marked)
        pages.append(page)
        page.wait_for_selector(ready)
        return page

    yield open_page
    for page in pages:
        page.wait_for_timeout(300)  # what an injected element starts comes a little later
        assert page.evaluate(FOREIGN) == 0
        assert page.evaluate("window.foreign") is None
        assert page.url.startswith(marked)
        assert page.locator(".toast-body").count() == 0, "no event failed"


def hover(page, name: str, at: float) -> str:
    """The label over a plot, at a share of its width."""
    panel = page.locator(f'.panel[data-panel="{name}"]')
    panel.scroll_into_view_if_needed()
    box = panel.locator(".plot .nsewdrag").bounding_box()
    for x in (at + 0.02, at):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + box["height"] / 2)
    label = panel.locator(".hoverlayer .legend, .hoverlayer .hovertext").first
    label.wait_for()
    return label.text_content()


def test_the_estimator_above_the_answers_is_text(look):
    page = look(f"?tab=samples&runs={ONE}&at=2.0", ".answer")
    assert page.locator(".answers > .more").last.inner_text().startswith("\"'/><img data-fore")


def test_dynamics_with_menus_and_labels(look):
    page = look(f"?tab=dynamics&runs={ONE},2,broken", DRAWN)
    page.get_by_label("Find metrics").fill("<img data-foreign")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.shelf h2').textContent.startsWith('Metrics with')")
    assert "<img data-foreign" in page.locator(".shelf").first.inner_text()
    page.get_by_role("button", name="hours").click()
    page.wait_for_function("() => document.querySelector('.panel .plot').layout.xaxis.title.text === 'hours'")


@pytest.mark.parametrize("run", [ONE, "broken"])
def test_every_group_with_and_without_formulas(look, run):
    page = look(f"?tab=samples&runs={run},2&run={run}&steps=all", ".answer")
    for i in range(page.locator(".groups li").count()):
        page.locator(".groups li button").nth(i).click()
        page.wait_for_selector(f".groups li:nth-child({i + 1}) button[aria-current]")
        assert "<img data-foreign" in page.locator(".prompt").inner_text()
        assert page.evaluate(FOREIGN) == 0
    page.get_by_role("button", name="Source").click()
    page.wait_for_selector(".tools [aria-pressed=true]")
    assert "<img data-foreign" in page.locator(".answer").first.inner_text()
    page.get_by_role("button", name="Filters").click()
    page.get_by_label("Cluster").click()
    page.locator("[role=option]", has_text="<img data-foreign").first.click()
    page.wait_for_function("() => location.search.includes('cluster=')")


def test_evaluation_with_its_questions(look):
    page = look(f"?tab=evaluation&runs={ONE},2,broken", "table.scores")
    assert "<img data-foreign" in page.locator("table.scores").inner_text()
    page.locator(".questions > ol > li > button").first.click()
    page.wait_for_selector("article.group .answer")
    assert "<img data-foreign" in page.locator("article.group").inner_text()
    panel = page.locator(".panel").first
    panel.scroll_into_view_if_needed()
    panel.locator(".main-svg").first.wait_for()
    assert hover(page, panel.get_attribute("data-panel").replace("\\", "\\\\").replace('"', '\\"'), 0.5)


@pytest.mark.nightly  # daily: unit/test_space_markup.py
@pytest.mark.parametrize("tab", PAGES)
def test_every_page_shows_what_runs_hold_and_what_a_visitor_asks_for_as_text(look, tab):
    page = look(f"?tab={tab}&runs={ONE},2,broken&steps=all&at=2.0", ANSWERED)
    if PAGES[tab].reads:
        page.wait_for_function("() => document.body.innerText.includes('<img data-foreign')")
    mark = quote("<img data-foreign src=x onerror=alert(1)>")
    asked = "&".join(f"{name}={mark}" for name in PARAMETERS if name not in ("tab", "runs"))
    for runs in (mark, f"{ONE},2,broken"):
        look(f"?tab={tab}&runs={runs}&{asked}", ANSWERED)


def test_an_element_that_came_in_all_the_same_could_run_nothing(contexts, marked):
    page = contexts("desk").new_page()
    page.goto(f"{marked}/?tab=understand")
    page.wait_for_selector(ANSWERED)
    page.evaluate("""() => {
        window.blocked = [];
        addEventListener("securitypolicyviolation", (event) => window.blocked.push(event.violatedDirective));
        document.body.insertAdjacentHTML("beforeend", "<img src=./space/x onerror='window.foreign = 1'>"
            + "<iframe srcdoc='<script>parent.foreign = 1</script>'></iframe><svg onload='window.foreign = 1'></svg>");
        const script = document.body.appendChild(document.createElement("script"));
        script.textContent = "window.foreign = 1";
        fetch("http://evil.test/").catch(() => {});
    }""")
    page.wait_for_function(
        "() => ['script-src-elem', 'script-src-attr', 'connect-src'].every((each) => window.blocked.includes(each))"
    )
    assert page.evaluate("window.foreign") is None
    page.close()
