"""Events of one visitor that overlap: none is lost, only the latest answers, and the browser gets what it lacks."""

import copy

from openrlhf_ebpo.space.links import Session


def answered(session: Session, changes: dict, **more) -> set[str] | None:
    return session.end(session.begin(changes, **more), "stamp")


def opened() -> Session:
    session = Session()
    answered(session, {"tab": "samples"})
    return session


def test_a_refresh_under_way_does_not_answer_after_a_click():
    session = opened()
    refresh = session.begin({})
    click = session.begin({"at": "3.1"})
    assert session.end(click, "new") == {"at"}
    assert session.end(refresh, "old") is None
    assert session.view["at"] == "3.1" and session.stamp == "new" and not session.busy


def test_two_clicks_at_once_change_one_view_and_the_last_answers_for_both():
    session = opened()
    first, second = session.begin({"steps": "all"}), session.begin({"kind": "rescued"})
    assert second.view["steps"] == "all"
    assert session.end(first, "") is None
    assert session.end(second, "") == {"steps", "kind"}
    assert answered(session, {"kind": "rescued"}) == set()


def test_what_was_typed_is_sent_back_only_where_it_was_changed():
    session = opened()
    assert answered(session, {"from": 0.5}, typed={"from": 0.5}) == set()
    assert answered(session, {"to": 0.2}, typed={"to": 0.2}) == {"from", "to"}, "the two are put in order"
    assert answered(session, {"g": 99}, typed={"g": 99}) == {"g"}


def test_the_address_of_an_answer_is_numbered_so_that_an_overtaken_one_is_noticed():
    session = opened()
    assert session.sent == "1?tab=samples"
    answered(session, {"tab": "overview"})
    assert session.sent == "2?"


def test_a_server_that_has_started_again_goes_on_from_what_the_browser_shows():
    session = Session()
    turn = session.begin({"at": "3.1"}, "7?tab=samples&runs=a,b")
    session.end(turn, "")
    assert session.view["runs"] == ["a", "b"] and session.sent == "8?tab=samples&runs=a,b&at=3.1"
    for nonsense in ("", "x?tab=nowhere", "?", "9" * 400 + "?"):
        assert Session().begin({}, nonsense).view["tab"] == "overview"


def test_every_visitor_has_a_view_of_their_own():
    first = opened()
    assert copy.deepcopy(first).view is None


def test_clicks_that_arrive_in_another_order_leave_what_the_last_one_wanted():
    session = opened()
    later, earlier = session.begin({"at": "4.2"}, order=2), session.begin({"at": "4.9", "steps": "all"}, order=1)
    assert session.end(later, "") is None
    assert session.end(earlier, "") == {"at", "steps"}
    assert (session.view["at"], session.view["steps"]) == ("4.2", "all")
    answered(session, {"at": "5.0"}, order=3)
    answered(session, {"at": ""}, typed={"steps": "all"})
    assert session.view["at"] == ""
