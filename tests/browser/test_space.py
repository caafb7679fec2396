"""Each page's main actions in a real browser."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from panels import panel

DRAWN = ".panel[data-drawn]"


def choose(page, group: int) -> None:
    page.locator(".groups li button").nth(group).click()
    page.wait_for_function(f"() => document.querySelector('.group h2').innerText.includes('group {group}')")


def x_range(page, name: str) -> list[float]:
    return panel(page, name).locator(".plot").evaluate("e => e.layout.xaxis.range.map(Number)")


def zoom(page, name: str, low: float, high: float) -> None:
    """As dragging over the plot does."""
    box = panel(page, name).locator(".plot .nsewdrag").bounding_box()
    first, last = x_range(page, name)
    at = [box["x"] + (v - first) / (last - first) * box["width"] for v in (low, high)]
    y = box["y"] + box["height"] / 2
    page.mouse.move(at[0], y)
    page.mouse.down()
    page.mouse.move(at[1], y + 2, steps=4)
    page.mouse.up()


def test_the_overview_leads_to_what_shows_a_warning(visit):
    page = visit("?runs=ebpo,troubled")
    page.wait_for_selector(".run-card")
    assert "1 failed" in page.locator(".sum").inner_text()
    collapse = page.locator(".warned li", has_text="Entropy collapse")
    assert "since step" in collapse.inner_text()
    collapse.get_by_role("button", name="panel").click()
    page.wait_for_selector('.panel[data-panel="policy/entropy"][data-drawn]')
    assert page.locator(".shelf").first.locator(".panel").get_attribute("data-panel") == "policy/entropy"
    page.get_by_role("tab", name="Overview").click()
    page.locator(".warned li", has_text="Truncated").get_by_role("button", name="groups").click()
    page.wait_for_selector(".group")
    assert "kind=truncated" in page.url and "run=troubled" in page.url


def test_a_click_on_a_runs_dot_hides_it_everywhere(visit):
    page = visit("?runs=ebpo,grpo")
    page.wait_for_selector(".run-card")
    page.get_by_label("grpo is shown").click()
    page.wait_for_function("() => document.querySelectorAll('.run-card').length === 1")
    assert "hidden=grpo" in page.url and page.locator(".chip").count() == 2
    page.get_by_role("tab", name="Evaluation").click()
    page.wait_for_selector("table.scores")
    assert "grpo" not in page.locator("table.scores").inner_text()


def test_a_run_that_is_training_is_followed_without_losing_the_place(visit, runs):
    from space_runs import RunWriter

    folder = runs / "live"
    page = visit("?tab=dynamics&runs=live")
    page.wait_for_selector(DRAWN)
    zoom(page, "rollout/reward_mean", 5, 15)
    page.wait_for_function("() => document.querySelector('.panel .plot').layout.xaxis.range[0] > 3")
    place = x_range(page, "rollout/reward_mean")
    assert x_range(page, "response_length") == place, "panels zoom together"
    page.wait_for_function("() => location.search.includes('zoom=')")
    linked = visit(page.url.split("/", 3)[3])
    linked.wait_for_selector(DRAWN)
    assert x_range(linked, "rollout/reward_mean") == pytest.approx(place, abs=1e-3), "a link keeps the zoom"
    samples = visit("?tab=samples&runs=live")
    first = samples.locator(".group h2").inner_text()
    RunWriter(folder, None).write_metrics(21, {"rollout/reward_mean": 0.987, "response_length": 700.0})
    row = (folder / "rollouts" / "step-000020.parquet").read_bytes()
    (folder / "rollouts" / "step-000021.parquet").write_bytes(row)
    page.wait_for_function("() => document.querySelector('.panel .plot').calcdata.at(-1).at(-1).x === 21")
    assert x_range(page, "rollout/reward_mean") == place
    samples.wait_for_selector("text=step 21")
    assert samples.locator(".group h2").inner_text() == first, "the open group stays"


def test_samples_show_groups_that_were_pushed_down_in_one_click(visit):
    page = visit("?tab=samples&runs=ebpo,grpo")
    page.wait_for_selector(".answer")
    page.get_by_role("button", name="all fail, penalised").first.click()
    page.wait_for_selector(".group .bar em:has-text('penalised')")
    assert page.locator(".groups li").count() > 5
    assert set(page.locator(".groups li em").all_inner_texts()) == {"all fail, penalised"}
    assert page.locator(".tile.minus").count() == 4
    answer = page.locator(".answer")
    text = answer.inner_text()
    assert "EBPO\n−" in text and "GRPO\n0" in text and "tokens" in text
    assert "minus" in answer.get_attribute("class")
    said = page.locator("svg.picture").get_attribute("aria-label")
    assert "group mean 0," in said and "prior mean" in said and "baseline" in said
    assert "kind=rescued" in page.url and "steps=all" in page.url


def test_samples_by_keyboard_history_and_filters(visit):
    page = visit("?tab=samples&runs=ebpo,grpo&steps=all")
    page.wait_for_selector(".answer")
    place = page.locator(".group h2").inner_text()
    page.locator("body").press("j")
    page.wait_for_function(f"() => document.querySelector('.group h2').innerText !== {json.dumps(place)}")
    second = page.locator(".group h2").inner_text()
    page.locator("body").press("k")
    page.wait_for_function(f"() => document.querySelector('.group h2').innerText === {json.dumps(place)}")
    assert second != place

    visits = page.locator(".history button")
    assert visits.count() > 1
    prompt = page.locator(".prompt .piece.md").inner_text()
    visits.first.click()
    page.wait_for_selector(".history button:first-child[aria-current]")
    assert page.locator(".prompt .piece.md").inner_text() == prompt

    page.get_by_role("button", name="Filters").click()
    page.wait_for_timeout(500)  # Gradio fills what it has just unfolded
    page.get_by_role("textbox", name="Steps").fill("10-12")
    page.get_by_role("textbox", name="Steps").press("Enter")
    page.wait_for_function("() => location.search.includes('steps=10-12')")
    assert {
        e.split("·")[0].strip() for e in page.locator(".groups li .top small:first-child").all_inner_texts() if "·" in e
    } <= {"step 10", "step 11", "step 12"}
    page.get_by_label("Text").fill("triangle has LEGS")
    page.get_by_label("Text").press("Enter")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.groups .words')].every(e => e.innerText.includes('triangle'))"
    )
    page.get_by_label("Text").fill("surely nowhere")
    page.get_by_label("Text").press("Enter")
    page.wait_for_selector("text=No group fits")


def test_a_prompt_that_was_never_solved_is_found_and_its_answers_stand_beside_those_of_another_run(visit):
    page = visit("?tab=samples&runs=a,b")
    page.wait_for_selector(".answer")
    page.get_by_role("button", name="prompts").click()
    page.wait_for_selector(".prompts tbody tr")
    assert "never solved" in page.locator(".prompts header").inner_text()
    assert not page.locator(".answer").is_visible() and "list=prompts" in page.url
    page.get_by_role("button", name="times asked").click()
    page.wait_for_selector(".prompts th[aria-sort=ascending]:has-text('times asked')")
    page.locator(".prompts tbody button").last.click()
    page.wait_for_selector(".answer:visible")
    page.locator(".elsewhere").last.get_by_role("button", name="b step").click()
    page.wait_for_selector(".two-answers .answer >> nth=1")
    left, right = (page.locator(".two-answers > div").nth(i).bounding_box() for i in (0, 1))
    assert left["x"] + left["width"] <= right["x"] and abs(left["y"] - right["y"]) < 2
    page.locator(".two-answers .strip").nth(1).get_by_role("button").nth(2).click()
    page.wait_for_selector(".two-answers > div:nth-child(2) h2:has-text('Answer 3')")
    assert "Answer 1" in page.locator(".two-answers .answer h2").first.inner_text()


def test_equations_are_numbered_one_after_the_other(visit):
    """Containment restarts a counter: the tenth number is as wide as the first where each of them is 1."""
    page = visit("?tab=samples&runs=ebpo")
    page.wait_for_selector(".answer .part .piece.md")
    widths = page.evaluate(
        """() => {
            const part = document.querySelector(".answer .part");
            const piece = "<p class='piece'><i class='tml-eqn'></i></p>";
            part.insertAdjacentHTML("beforeend", piece.repeat(12));
            return [...part.querySelectorAll(".tml-eqn")].map((each) => each.offsetWidth);
        }"""
    )
    assert len(widths) == 12 and widths[9] > widths[0]


def test_the_last_of_quick_clicks_counts(visit):
    page = visit("?tab=samples&runs=ebpo")
    page.wait_for_selector(".answer")
    page.evaluate("[3, 1, 4, 2].forEach(i => document.querySelectorAll('.groups li button')[i].click())")
    page.wait_for_function(  # the address is ahead of the answers, and each of them is shown as it comes
        "() => location.search.includes('at=40.2') && "
        "document.querySelector('.group h2')?.innerText.includes('group 2')"
    )
    page.wait_for_timeout(1000)  # no earlier answer comes after it
    assert "group 2" in page.locator(".group h2").inner_text()


def test_a_press_counts_though_its_button_is_replaced_before_the_release(visit):
    page = visit("?tab=samples&runs=ebpo")
    page.wait_for_selector(".answer")
    page.locator(".groups li button").nth(3).hover()
    page.mouse.down()
    page.evaluate("{ const list = document.querySelector('.groups ol'); list.replaceWith(list.cloneNode(true)); }")
    page.mouse.up()
    page.wait_for_function("() => location.search.includes('at=40.3')")


def test_evaluation_compares_and_opens_questions(visit):
    page = visit("?tab=evaluation&runs=ebpo,grpo&paper=Qwen3-8B,4")
    page.wait_for_selector("table.scores")
    head = page.locator("table.scores thead").inner_text()
    assert "step 40" in head and head.count("base model") == 1
    rows = page.locator("table.scores tbody tr").all_inner_texts()
    assert rows[0].startswith("aime24") and "50.21" in rows[0] and rows[-1].startswith("average")
    assert "reported in the paper" in rows[0] and "difference" in rows[0]
    wide = page.locator(".scroll:has(table.scores)").evaluate("e => [e.scrollWidth, e.clientWidth]")
    assert wide[0] <= wide[1], "nothing lies sideways"
    panel(page, "pass-aime24").scroll_into_view_if_needed()
    panel(page, "pass-aime24").locator(".main-svg").first.wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Table as CSV").click()
    table = Path(download.value.path()).read_text().splitlines()
    assert (
        table[0].startswith('"task","base model')
        and table[1].startswith('"aime24')
        and not any(',"+' in row for row in table)
    )
    page.locator(".questions > ol > li > button").first.click()
    page.wait_for_selector("article.group .answer")
    assert "right" in page.locator("article.group summary").first.inner_text()
    assert "question=" in page.url
    row = page.locator(".questions > ol > li").first
    assert row.locator("article.group").count() == 1, "the samples open below their question"
    page.get_by_role("button", name="Close").click()
    page.wait_for_selector("article.group .answer", state="detached")
    hardest = row.inner_text()
    page.get_by_role("button", name="easiest first").click()
    page.wait_for_function(f"() => document.querySelector('.questions > ol > li').innerText !== {json.dumps(hardest)}")
    page.get_by_label("Checkpoints").fill("ebpo · step 20")
    page.keyboard.press("Enter")
    page.wait_for_selector("table.scores thead :text('step 20')")
    assert "step%2020" in page.url and "step 40" not in page.locator("table.scores thead").inner_text()


def test_back_goes_to_the_page_before(visit):
    page = visit("?tab=samples&runs=ebpo")
    page.wait_for_selector(".strip")
    first = page.locator(".group h2").inner_text()
    choose(page, 2)
    page.get_by_role("tab", name="Evaluation").click()
    page.wait_for_selector("table.scores")
    page.go_back()
    page.wait_for_selector(".strip")
    assert "group 2" in page.locator(".group h2").inner_text() and "tab=samples" in page.url
    page.go_back()
    page.wait_for_function(f"() => document.querySelector('.group h2').innerText === {json.dumps(first)}")
    page.go_forward()
    page.wait_for_function("() => document.querySelector('.group h2').innerText.includes('group 2')")


def test_tiles_reward_and_list_stay_in_sight_while_a_long_answer_is_read(visit):
    page = visit("?tab=samples&runs=ebpo&text=is")
    page.wait_for_selector(".answers > .answer .marks .hits")
    page.add_style_tag(content=".answers .reading { min-height: 4000px; }")
    page.wait_for_function(  # scrolls at every look: the page may still have been short at the one before
        """() => {
            scrollTo({ top: 1500, behavior: 'instant' });
            const parts = [".answers > .strip", ".answers > .answer > header", ".answers .marks", ".groups ol"];
            const tops = parts.map((each) => document.querySelector(each).getBoundingClientRect().top);
            return scrollY > 1000 && tops.every((top) => top >= 0 && top < 250) && tops[0] < tops[1] &&
            tops[1] < tops[2];
        }"""
    )


def test_answers_of_a_protocol_with_one_task_are_shown(visit):
    page = visit("?tab=evaluation&runs=ebpo&protocol=default%2Bn%3D4")
    page.wait_for_selector("table.scores")
    assert "held-out" in page.locator("table.scores tbody").inner_text()
    assert "step 20" in page.locator("table.scores thead").inner_text()
    page.wait_for_selector(".grid.two > .panel")
    shares = "[...document.querySelectorAll('.grid.two')].map((each) => each.firstChild.offsetWidth / each.offsetWidth)"
    assert max(page.evaluate(shares)) < 0.6, "a lone panel keeps its width"
    page.locator(".questions > ol > li > button").first.click()
    page.wait_for_selector("article.group .answer")
    shown = page.locator("article.group").first.inner_text()
    assert "Question" in shown and "answer given" in shown  # \boxed{…} is a box once its formula is set


def test_understand_answers_at_once(visit):
    page = visit("?tab=understand")
    page.wait_for_selector(".story")
    assert "All 4 answers are wrong" in page.locator(".story").inner_text()
    assert "= 0.14" in page.locator(".story .formula").inner_text()
    page.get_by_label("range slider for Right answers").press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.story').innerText.includes('1 of 4 answers right')")
    assert "right=1" in page.url


def test_a_link_opens_the_same_view(visit):
    page = visit("?tab=samples&runs=ebpo,grpo")
    page.wait_for_selector(".answer")
    page.get_by_role("button", name="mixed").click()
    page.wait_for_function("() => location.search.includes('kind=mixed') && location.search.includes('at=')")
    page.locator(".groups li button").nth(2).click()
    page.wait_for_selector(".groups li:nth-child(3) button[aria-current]")
    page.locator("body").press("d")
    page.wait_for_function("() => document.querySelector('.answer h2').innerText.includes('Answer 2')")
    page.wait_for_selector(".answer .piece.md")
    url, title, answers = page.url, page.locator(".group h2").inner_text(), page.locator(".answers").inner_text()
    other = visit(url.split("/", 3)[3])
    other.wait_for_selector(".answer .piece.md")
    assert other.locator(".group h2").inner_text() == title
    assert other.locator(".answers").inner_text() == answers
    assert other.locator(".choices button[aria-pressed=true]", has_text="mixed").count() == 1
    assert other.url == url
    nonsense = visit("?tab=nothing&runs=ebpo&smooth=abc&at=x.y&g=1e99&x=%3Cscript%3E")
    nonsense.wait_for_selector(".run-card")


def test_bars_of_shares_are_as_high_as_their_share_and_say_it(visit):
    page = visit("?tab=samples&runs=ebpo&steps=all&kind=mixed")
    page.wait_for_selector(".history button")
    bars = page.locator(".history button").evaluate_all(
        "all => all.map(b => [b.title, b.querySelector('i').offsetHeight / b.querySelector('.column').clientHeight])"
    )
    assert len(bars) > 1
    for title, height in bars:
        share = float(title.split(": ")[1].split(" %")[0]) / 100
        assert abs(height - share) < 0.06, (title, height)


def test_all_runs_are_a_table_that_sorts(visit):
    page = visit("?runs=ebpo,grpo")
    page.get_by_role("button", name="runs").first.click()
    page.wait_for_selector(".all-runs table")
    page.locator(".all-runs thead button", has_text="estimator").click()
    page.wait_for_selector(".all-runs th[aria-sort=ascending]")
    assert "table=1" in page.url and "sort=estimator" in page.url
    page.locator(".all-runs tbody tr", has_text="grpo").first.locator(".see").click()
    page.wait_for_url("**hidden=grpo*")


READY = {
    "Overview": ".run-card",
    "Dynamics": DRAWN,
    "Samples": ".answer",
    "Evaluation": "table.scores",
    "Configuration": "table.settings",
    "Understand": ".story",
}


def turn(page, name: str) -> None:
    tab = page.get_by_role("tab", name=name)
    if not tab.is_visible():  # a phone has no room for all of them
        page.locator("#pages .overflow-menu > button").click()
        tab = page.locator("#pages .overflow-dropdown button", has_text=name)
    tab.click()
    page.wait_for_selector(f"{READY[name]}:visible")


def test_pages_fit_a_phone(visit):
    page = visit("?runs=ebpo,grpo,troubled", kind="phone")
    page.wait_for_selector(".run-card")
    wide = "e => [...document.querySelectorAll(e)].filter(n => n.getBoundingClientRect().right > 391).length"
    for name in READY:
        turn(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        wide_parts = ".panel, .answer, .groups, .note, .story, .notice, .chip, .run-card"
        assert page.evaluate(wide, wide_parts) == 0, name


def test_a_hostile_run_is_shown_and_does_nothing(visit):
    page = visit("?runs=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    page.wait_for_selector(".run-card")
    assert page.evaluate(HARM) == 0
    turn(page, "Dynamics")
    assert "damaged lines are left out" in notice(page)
    turn(page, "Evaluation")
    assert "broken/step-000001/summary.json is damaged" in notice(page) and "schema 99" in notice(page)
    turn(page, "Samples")
    assert "step-000002.parquet is left out: it is damaged" in notice(
        page
    ) and "leads out of the run's directory" in notice(page)
    assert "step-000004.parquet is left out" in notice(page)
    assert page.locator(".groups li").count() == 10, "the group behind the link is not there"
    for i in range(10):
        choose(page, i)
        assert page.locator(".tile").count() == 3
        assert page.evaluate("document.documentElement.scrollWidth") <= 1440
        assert page.evaluate(HARM) == 0
    assert page.evaluate("window.hacked") is None
    page.evaluate("scrollTo(0, 0)")
    assert page.evaluate("document.elementFromPoint(60, 30).closest('.masthead, .top-row') !== null"), "covered"


HARM = (
    "document.querySelectorAll('.own :is(script, iframe, img, link, style, a:not(.csv-link), base)').length"
    " + document.querySelectorAll('[onerror], [onload], [onfocus]').length"
)


def notice(page) -> str:
    return page.locator(".notice:visible").inner_text()


def test_only_what_was_given_can_be_read(visit, app, runs):
    page = visit("?runs=../../etc,strangers/run")
    page.wait_for_selector(".notice")
    said = page.locator(".notice").inner_text()
    assert "no run called “../../etc”" in said and "no run called “strangers/run”" in said
    for path in (
        f"gradio_api/file={runs}/ebpo/run.json",
        "gradio_api/file=/etc/passwd",
        "space/../main.py",
        "space/%2e%2e/main.py",
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{app}/{path}", timeout=10)
        assert refused.value.code in (403, 404)
