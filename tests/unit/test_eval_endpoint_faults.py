"""Servers of models that fail, hang, refuse or say nonsense: what passes, and what ends the evaluation."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest
from model_server import GREEDY, KEY, RAW, SAMPLED, respond

from openrlhf_ebpo.eval import endpoint_client, endpoint_questions
from openrlhf_ebpo.eval.endpoint import Endpoint
from openrlhf_ebpo.eval.endpoint_client import Pace
from openrlhf_ebpo.eval.jobs import StorageError
from openrlhf_ebpo.generation.engines import GenerationError
from openrlhf_ebpo.redact import Secret


def drop(handler, *_):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def hang(handler, *_):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    handler.wfile.flush()
    time.sleep(3)
    handler.close_connection = True


def trickle(handler, *_):
    """A byte now and then: no single read takes long."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    for _ in range(100):
        time.sleep(0.05)
        try:
            handler.wfile.write(b" ")
        except OSError:
            break
    handler.close_connection = True


def huge(handler, *_):
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 40))
    handler.end_headers()
    with_room = b" " * (1 << 20)
    try:
        for _ in range(64):
            handler.wfile.write(with_room)
    except OSError:
        pass
    handler.close_connection = True


BAD = {
    "slow down": lambda handler, *_: handler.reply({"error": {"message": "slow down"}}, 429, Retry_After="0.1"),
    "no time given": lambda handler, *_: handler.reply({"error": "slow down"}, 429, Retry_After="soon"),
    "broken": lambda handler, *_: handler.reply({"error": {"message": "boom"}}, 500),
    "a page": lambda handler, *_: handler.reply(b"<html>Bad gateway</html>", 502),
    "a page that says all is well": lambda handler, *_: handler.reply(b"<html>Welcome</html>"),
    "junk": lambda handler, *_: handler.reply(b'{"choices": [' + b"[" * 100_000),
    "no object": lambda handler, *_: handler.reply([1]),
    "an error that says all is well": lambda handler, *_: handler.reply({"error": {"message": "overloaded"}}),
    "an error with a status inside": lambda handler, *_: handler.reply({"error": {"message": "x", "code": 503}}),
    "dropped": drop,
    "hanging": hang,
    "trickling": trickle,
    "huge": huge,
}


@pytest.mark.parametrize("bad", BAD)
def test_what_passes_is_tried_again(serve, bad):
    def at_first(handler, body, number):
        if number == 1:
            BAD[bad](handler, body, number)
            return True

    server = serve(at_first)
    records, failed = respond(server, timeout=0.5 if BAD[bad] in (hang, trickle) else 20.0)
    assert list(records) == ["t/0"] and not failed and len(server.asked) == 2


def test_a_question_that_alone_fails_does_not_stop_the_others(serve):
    def poison(handler, body, _):
        if body["prompt"] == "x\n":
            handler.reply({"error": {"message": "this one"}}, 500)
            return True

    records, failed = respond(serve(poison), 6, concurrency=2)
    assert len(records) == 5 and list(failed) == ["t/0"] and "this one; tried for" in failed["t/0"]


def test_an_error_with_http_200_is_what_its_code_says(serve):
    def behave(handler, body, _):
        codes = {"x\n": 400, "xx\n": "422", "xxx\n": "no number"}
        if (code := codes.get(body["prompt"])) is not None:
            handler.reply({"choices": [], "error": {"message": f"no\x1b[1m {KEY}", "code": code}})
            return True

    server = serve(behave)
    records, failed = respond(server, 5, concurrency=1, key=Secret(KEY))
    assert set(records) == {"t/3", "t/4"} and [body["prompt"] for _, body, _ in server.asked].count("x\n") == 1
    assert all("answered HTTP 200 with an error: no [1m" in each and KEY not in each for each in failed.values())
    assert "tried for" in failed["t/2"] and [body["prompt"] for _, body, _ in server.asked].count("xxx\n") == 8
    ends = serve(lambda handler, *_: handler.reply({"error": {"message": "no", "code": 401}}) or True)
    with pytest.raises(GenerationError, match="is the key for this server"):
        respond(ends)


def test_where_nothing_is_answered_the_command_ends_with_the_cause(serve):
    server = serve(lambda handler, *_: handler.reply({"error": {"message": "no GPU left"}}, 503) or True)
    with pytest.raises(GenerationError, match=r"no answer from http://127.*/v1 for .*give_up_after.*503: no GPU left"):
        respond(server, 40, concurrency=8, give_up_after=0.3)
    server.shutdown()
    server.server_close()
    with pytest.raises(GenerationError, match=r"no answer from .* the last: http://127.*Connect"):
        respond(server, 3, give_up_after=0.2)


def test_a_question_that_is_put_off_for_ever_after_the_others_were_answered_is_given_up(serve):
    refused = threading.Event()

    def put_off(handler, body, _):
        if body["prompt"] == "x\n":
            handler.reply({"error": {"message": "later"}}, 429)
            refused.set()
            return True
        refused.wait(10)

    with pytest.raises(GenerationError, match=r"no answer from .* the last: .*429: later"):
        respond(serve(put_off), 2, concurrency=2, give_up_after=0.3)


def test_a_pause_that_the_server_asks_for_is_kept_by_all_requests(serve, monkeypatch):
    held = []
    monkeypatch.setattr(Pace, "hold", lambda self, seconds, hold=Pace.hold: (held.append(seconds), hold(self, seconds)))
    respond(serve(lambda handler, body, number: number == 1 and (BAD["slow down"](handler), True)[1]), 2)
    assert held == [0.1]
    long = serve(lambda handler, *_: handler.reply({"error": {"message": "quota"}}, 429, Retry_After="3600") or True)
    with pytest.raises(GenerationError, match=r"quota: the server asks to wait 3600 s, longer than --give_up_after 20"):
        respond(long)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *[("7", 7.0), ("-7", 0.0), ("inf", None), ("nan", None), ("soon", None), ("", None)],
        *[("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("Thu, 01 Jan 1970 00:00:00 -0000", None)],
    ],
)
def test_retry_after_is_a_number_or_a_date(value, seconds):
    assert endpoint_client.retry_after({"Retry-After": value}) == seconds


@pytest.mark.parametrize(
    ("status", "parts"),
    [
        (401, ["HTTP 401: no", "is the key for this server?"]),
        (404, ["HTTP 404: no", "does the address end in /v1?"]),
        (402, ["HTTP 402: no", "credit"]),
    ],
)
def test_what_no_repetition_mends_ends_the_command_at_once(serve, status, parts):
    server = serve(lambda handler, *_: handler.reply({"error": {"message": "no"}}, status) or True)
    with pytest.raises(GenerationError) as stopped:
        respond(server, 30, concurrency=2)
    assert all(part in str(stopped.value) for part in parts) and len(server.asked) <= 4


def test_redirects_are_not_followed(serve):
    other = serve()
    to = f"{other.url}/completions?token=abc"
    server = serve(lambda handler, *_: handler.reply(b"", 307, Location=to) or True)
    with pytest.raises(GenerationError, match=r"a redirect to http://127.*which is not followed") as stopped:
        respond(server, key=Secret(KEY))
    assert not other.asked and "abc" not in str(stopped.value)


def test_questions_that_are_refused_are_named_and_many_in_a_row_end_the_command(serve):
    def too_long(handler, body, _):
        if len(body["prompt"]) > 3:
            handler.reply({"error": {"message": "the prompt is too long"}}, 400)
            return True

    server = serve(too_long)
    records, failed = respond(server, 5, concurrency=1)
    assert set(records) == {"t/0", "t/1"} and set(failed) == {"t/2", "t/3", "t/4"} and len(server.asked) == 5
    with pytest.raises(GenerationError, match=r"16 questions in a row got no responses; the last: .*too long"):
        respond(server, 60, concurrency=1)
    assert len(server.asked) < 5 + 30


def test_hostile_words_of_a_server_reach_nobody(serve):
    hostile = f"\x1b[2Jbad\r\nerror: all is well {KEY} hf_{'a1' * 20} \u202e" + "x" * 50_000
    server = serve(lambda handler, *_: handler.reply({"error": {"message": hostile}}, 400) or True)
    _, failed = respond(server, key=Secret(KEY))
    text = failed["t/0"]
    assert text.isprintable() and len(text) < 400 and "bad error: all is well" in text
    assert KEY not in text and "hf_a1" not in text


def test_silence_is_said(serve, monkeypatch):
    monkeypatch.setattr(endpoint_client, "SILENCE", 0.1)
    free, said = threading.Event(), []
    server = serve(lambda *_: free.wait(10) and False)

    class Said(list):
        def append(self, line):
            super().append(line)
            free.set()

    respond(server, 3, said=(said := Said()))
    assert any(line.startswith("no answer for ") and "3 requests wait" in line for line in said)


def test_so_many_requests_at_once_and_not_more(serve):
    together = threading.Barrier(4)
    waiting, most, lock = [], [], threading.Lock()

    def behave(*_):
        with lock:
            waiting.append(1)
            most.append(len(waiting))
        together.wait(20)
        with lock:
            waiting.pop()

    records, failed = respond(serve(behave), 12, concurrency=4)
    assert len(records) == 12 and not failed and max(most) == 4


def test_requests_per_minute_are_spread_evenly(monkeypatch):
    now, starts = [100.0], []

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(endpoint_client.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(endpoint_client.asyncio, "sleep", sleep)

    async def ask() -> None:
        pace = Pace(30)
        for i in range(4):
            await pace.turn()
            starts.append(now[0])
            if i == 1:
                pace.hold(10)

    asyncio.run(ask())
    assert starts == pytest.approx([100.0, 102.0, 112.0, 114.0])


def test_an_error_of_writing_ends_it_and_what_was_written_stays(serve):
    kept = []

    def keep(key, _):
        if len(kept) == 2:
            raise StorageError("the disk is full")
        kept.append(key)

    server = serve()
    with pytest.raises(StorageError):
        respond(server, 50, keep=keep, concurrency=1)
    assert len(kept) == 2 and len(server.asked) < 50


def test_proxies_of_the_environment_are_used_but_not_for_this_machine(serve, monkeypatch):
    proxy = serve()
    monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert endpoint_client.proxy_of("http://localhost:1/v1") is None
    asked = Endpoint("http://model.invalid/v1", "m")
    records = {}
    endpoint_questions.respond(asked, [("k", {"prompt": "x\n"}, 1)], RAW, GREEDY, records.__setitem__)
    assert proxy.asked[0][0] == "http://model.invalid/v1/completions" and records["k"]["responses"] == ["Answer: 2"]


@pytest.mark.parametrize("content", [{"choices": []}, {"error": {"message": "overloaded"}}, {"choices": [{"text": 3}]}])
@pytest.mark.parametrize("protocol", [GREEDY, SAMPLED])
def test_an_answer_without_responses_is_tried_again_and_says_nothing_of_n(serve, content, protocol):
    def at_first(handler, body, number):
        if number in (1, 3):
            handler.reply(content)
            return True

    server, said = serve(at_first), []
    records, failed = respond(server, 4, protocol=protocol, said=said, concurrency=1)
    assert len(records) == 4 and not failed and len(server.asked) == 6 and not said
    assert {body.get("n") for _, body, _ in server.asked} == {protocol.n if protocol.n > 1 else None}


@pytest.mark.parametrize("content", [{"choices": []}, {"error": {"message": "overloaded"}}])
def test_trouble_of_one_question_is_not_taken_for_a_server_without_n(serve, content):
    def poison(handler, body, _):
        if body["prompt"] == "xx\n":
            handler.reply(content)
            return True

    server, said = serve(poison), []
    records, failed = respond(server, 4, protocol=SAMPLED, said=said, concurrency=1)
    assert len(records) == 3 and "tried for" in failed["t/1"] and not said
    assert all(body["n"] == 4 for _, body, _ in server.asked)


def test_a_refusal_of_several_responses_to_one_question_is_not_one_of_n(serve):
    def filtered(handler, body, _):
        if body["prompt"] == "xx\n" and "n" in body:
            handler.reply({"error": {"message": "content filter"}}, 400)
            return True

    server, said = serve(filtered), []
    records, failed = respond(server, 4, protocol=SAMPLED, said=said, concurrency=1)
    assert len(records) == 4 and not failed and len(server.asked) == 4 + 4
    assert server.asked[-1][1]["n"] == 4 and any("4 were asked for one by one" in line for line in said)
