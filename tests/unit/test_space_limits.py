"""What one visitor may take of the server: calls a second, answers worked on, open streams. Clocks are the tests' own."""

from __future__ import annotations

import asyncio
import json

import pytest

from openrlhf_ebpo.space import limits
from openrlhf_ebpo.space.gate import Gate
from openrlhf_ebpo.space.limits import Allowance, Busy, Places, visitor_of
from openrlhf_ebpo.space.server import LOOPBACK, hosts_of, is_lasting, policy


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def admitted(allowance: Allowance, visitor: str, times: int, cost: float = 1) -> int:
    count = 0
    for _ in range(times):
        try:
            allowance.spend(visitor, cost)
        except Busy:
            break
        count += 1
    return count


def test_a_visitor_spends_a_burst_and_then_a_rate_and_no_other_pays_for_it():
    clock = Clock()
    allowance = Allowance(rate=5, clock=clock)
    assert admitted(allowance, "a", 100) == 20 and admitted(allowance, "b", 100) == 20
    with pytest.raises(Busy, match="Wait 1 s"):
        allowance.spend("a", 1)
    clock.now += 1
    assert admitted(allowance, "a", 100) == 5 and admitted(allowance, "c", 1000, cost=1 / 16) == 320


def test_the_table_of_visitors_is_bounded(monkeypatch):
    monkeypatch.setattr(limits, "VISITORS", 3)
    allowance = Allowance(rate=1)
    for visitor in "abcdefab":
        allowance.spend(visitor, 1)
    assert len(allowance._left) == 3


@pytest.mark.parametrize(
    ("headers", "space", "said"),
    [
        ([], "", "10.0.0.9"),
        ([(b"x-forwarded-for", b"8.8.8.8")], "", "10.0.0.9"),
        ([(b"x-forwarded-for", b"1.1.1.1, 8.8.8.8, 10.1.2.3")], "me/app", "8.8.8.8"),
        ([(b"x-forwarded-for", b"<script>, 2001:4860::1:2:3")], "me/app", "2001:4860::/64"),
        ([(b"x-forwarded-for", b"\xff," * 5000)], "me/app", "10.0.0.9"),
    ],
)
def test_who_a_visitor_is(monkeypatch, headers, space, said):
    monkeypatch.setenv("SPACE_ID", space)
    assert visitor_of({"client": ("10.0.0.9", 1), "headers": headers}) == said


def test_one_visitors_calls_leave_places_for_others_and_are_answered_in_turn():
    async def story():
        places, done = Places(at_once=3, each=2), []
        go = {name: asyncio.Event() for name in ("a1", "a2", "a3", "b1", "c1")}

        async def call(name: str):
            async with places.one(name[0]):
                await go[name].wait()
                done.append(name)

        calls = [asyncio.create_task(call(name)) for name in go]
        await asyncio.sleep(0)
        go["b1"].set()
        await calls[3]
        assert done == ["b1"], "a third call of a waits for a's own, b does not"
        for name in ("c1", "a1", "a2", "a3"):
            go[name].set()
        await asyncio.gather(*calls)
        assert sorted(done) == sorted(go) and not places._busy and not places._waiting

    asyncio.run(story())


def test_a_call_does_not_wait_for_ever_nor_do_too_many():
    async def story():
        places = Places(at_once=1, each=1, seconds=0.01)
        async with places.one("a"):
            with pytest.raises(Busy):
                await places._wait("b")
            places.seconds = 60
            waiting = [asyncio.create_task(places._wait("b")) for _ in range(limits.WAITING)]
            await asyncio.sleep(0)
            with pytest.raises(Busy):
                await places._wait("b")
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        assert not places._busy and not places._waiting

    asyncio.run(story())


async def ask(
    gate: Gate, path: str, method: str = "GET", body: bytes = b"{}", client: str = "1.2.3.4", host: str | None = None
) -> tuple[int, dict, bytes]:
    """One request; its status, headers and body."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "client": (client, 1)}
    named = [] if host is None else [(b"host", host.encode())]
    await gate({**scope, "headers": [(b"content-type", b"application/json"), *named]}, receive, send)
    return sent[0]["status"], dict(sent[0].get("headers", ())), sent[-1].get("body", b"")


async def empty(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_too_many_calls_are_told_to_wait_and_files_are_cheap():
    async def story():
        gate = Gate(empty, worked_on={"/space/text"}, rate=1)
        files = [(await ask(gate, "/assets/x.js"))[0] for _ in range(16)]
        calls = [await ask(gate, "/gradio_api/run/predict", "POST") for _ in range(4)]
        assert set(files) == {200} and [status for status, _, _ in calls] == [200, 200, 200, 429]
        _, headers, said = calls[-1]
        assert headers[b"retry-after"] == b"1" and "Wait 1 s" in json.loads(said)["error"]
        assert (await ask(gate, "/space/text"))[0] == 429 and (await ask(gate, "/gradio_api/upload", "POST"))[0] == 429

    asyncio.run(story())


def test_open_streams_of_a_visitor_are_counted(monkeypatch):
    monkeypatch.setattr("openrlhf_ebpo.space.gate.STREAMS", 1)

    async def story():
        ends = asyncio.Event()

        async def stream(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await ends.wait()

        gate = Gate(stream)
        first = asyncio.create_task(ask(gate, "/gradio_api/heartbeat/a"))
        await asyncio.sleep(0)
        assert (await ask(gate, "/gradio_api/heartbeat/b"))[0] == 429
        ends.set()
        assert (await first)[0] == 200 and not gate.streams

    asyncio.run(story())


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7860", "127.0.0.1:7860", "127.0.0.1", "[::1]:7860", "[::1]"])
def test_an_app_for_this_machine_answers_to_its_names(host):
    assert asyncio.run(ask(Gate(empty, hosts=LOOPBACK), "/", host=host))[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.test", "evil.test:7860", "127.0.0.1.evil.test", "localhost.evil.test", "x@localhost", "[::1", "", None,
             "localhost:7860, evil.test", "localhost:x", "[::1]x"]
)  # fmt: skip
def test_an_app_for_this_machine_refuses_other_names_which_may_point_here(host):
    """DNS rebinding: another site's name that now means 127.0.0.1, so that its page may read what it asks for."""
    status, _, body = asyncio.run(ask(Gate(empty, hosts=LOOPBACK), "/", host=host))
    assert status == 403 and b"--host" in body
    assert asyncio.run(ask(Gate(empty), "/", host=host))[0] == 200


@pytest.mark.parametrize(
    ("host", "space", "expected"), [("127.0.0.1", "", LOOPBACK), ("localhost", "", LOOPBACK), ("::1", "", LOOPBACK),
                                    ("0.0.0.0", "", None), ("gpu7.lab", "", None), ("127.0.0.1", "me/app", None)]
)  # fmt: skip
def test_whoever_names_another_address_is_found_by_any_name(monkeypatch, host, space, expected):
    monkeypatch.setenv("SPACE_ID", space)
    assert hosts_of(host) == expected


@pytest.mark.parametrize(
    ("space", "ancestors"),
    [("", "frame-ancestors 'self'"), ("me/app", "frame-ancestors 'self' https://huggingface.co")],
)
def test_other_sites_frame_the_app_on_the_hub_alone(monkeypatch, space, ancestors):
    monkeypatch.setenv("SPACE_ID", space)
    assert policy("n").split("; ")[-1] == ancestors and "'nonce-n'" in policy("n")


@pytest.mark.parametrize(
    ("path", "query", "lasts"),
    [
        ("/space/style.css", b"0.1.0-1795371944", True),
        ("/space/vendor/plotly/plotly-cartesian.min.js.gz", b"0.1.0-1", True),
        ("/assets/index-DphvyggB.js", b"", True),
        ("/assets/x.js", b"", False),
        ("/space/style.css", b"", False),
        ("/space/text", b"run=a-1", False),
        ("/space/text", b"0.1.0-1", False),
        ("/", b"0.1.0-1", False),
    ],
)
def test_only_files_stay_in_the_browser(path, query, lasts):
    assert is_lasting({"path": path, "query_string": query}) == lasts
