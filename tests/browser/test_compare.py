"""Compare in a real browser."""

SECOND = ".sides > .answer:last-child"


def test_answers_are_chosen_side_by_side_and_a_link_keeps_it(visit):
    page = visit("?tab=samples&runs=a,b&at=7.3")
    page.wait_for_selector(".answer")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector(f"{SECOND} .reading")
    page.locator(".side .choices button", has_text="b").first.click()
    page.wait_for_function("() => document.querySelector('.side:nth-child(2) h2').innerText.includes('· b')")
    page.locator(".side:nth-child(2) .strip button").nth(3).focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => document.querySelector('{SECOND} h2').innerText.includes('Answer 4')")
    assert "run_b=b" in page.url and "pick_b=4" in page.url and "at=7.3" in page.url
    linked = visit(page.url.split("/", 3)[3])
    linked.wait_for_selector(f"{SECOND} .reading")
    assert linked.locator(".sides h2").all_inner_texts() == page.locator(".sides h2").all_inner_texts()
