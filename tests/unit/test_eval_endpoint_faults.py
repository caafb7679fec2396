"""Servers of models that fail, hang, refuse or say nonsense: what passes, and what ends the evaluation."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from model_server import GREEDY, KEY, RAW, respond
from patience import seconds

from openrlhf_ebpo.eval import endpoint_questions
from openrlhf_ebpo.eval.endpoint import Endpoint
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


PASSES = {
    "slow down": lambda handler, *_: handler.reply({"error": {"message": "slow down"}}, 429, Retry_After="0.1"),
    "broken": lambda handler, *_: handler.reply({"error": {"message": "boom"}}, 500, Retry_After="0.1"),
    "a page": lambda handler, *_: handler.reply(b"<html>Bad gateway</html>", 502, Retry_After="soon"),
    "dropped": drop,
}


@pytest.mark.parametrize("bad", PASSES)
def test_what_passes_is_tried_again(serve, bad):
    def at_first(handler, body, number):
        if number == 1:
            PASSES[bad](handler, body, number)
            return True

    server = serve(at_first)
    records, failed = respond(server)
    assert list(records) == ["t/0"] and not failed and len(server.asked) == 2


@pytest.mark.parametrize("bad", [hang, trickle])
def test_each_wait_has_a_limit(serve, bad):
    def first_only(handler, body, number):
        if body["prompt"] == "x\n":
            bad(handler, body, number)
            return True

    limit = seconds(0.5)
    records, failed = respond(serve(first_only), 3, timeout=limit)
    assert set(records) == {"t/1", "t/2"} and f"took longer than {limit:g} s (--request_timeout)" in failed["t/0"]


def test_a_question_that_alone_fails_does_not_stop_the_others(serve):
    def poison(handler, body, _):
        if body["prompt"] == "x\n":
            handler.reply({"error": {"message": "this one"}}, 500, Retry_After="0.01")
            return True

    server = serve(poison)
    records, failed = respond(server, 6, concurrency=2, retries=2)
    assert len(records) == 5 and list(failed) == ["t/0"] and "HTTP 500: this one" in failed["t/0"]
    assert [body["prompt"] for _, body, _ in server.asked].count("x\n") == 3


def test_where_nothing_is_answered_the_command_ends_with_the_cause(serve):
    server = serve(lambda handler, *_: handler.reply({"error": {"message": "no GPU left"}}, 503) or True)
    with pytest.raises(GenerationError, match=r"16 questions in a row got no responses; .*503: no GPU left"):
        respond(server, 40, concurrency=8, retries=0)
    server.shutdown()
    server.server_close()
    with pytest.raises(
        GenerationError, match=r"16 questions in a row got no responses; the last: http://127.*Connect|conn"
    ):
        respond(server, 40, retries=0)


@pytest.mark.parametrize(("status", "part"), [(401, "is the key"), (404, "end in /v1?"), (402, "credit")])
def test_what_no_repetition_helps_ends_the_command_at_once(serve, status, part):
    server = serve(lambda handler, *_: handler.reply({"error": {"message": "no"}}, status) or True)
    with pytest.raises(GenerationError) as stopped:
        respond(server, 30, concurrency=2)
    assert f"HTTP {status}: no" in str(stopped.value) and part in str(stopped.value) and len(server.asked) <= 4


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
    proxy, server = serve(), serve()
    monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    records = {}
    question = ("k", {"prompt": "x\n"}, 1)
    endpoint_questions.respond(Endpoint("http://model.invalid/v1", "m"), [question], RAW, GREEDY, records.__setitem__)
    assert proxy.asked[0][0] == "http://model.invalid/v1/completions" and records["k"]["responses"] == ["Answer: 2"]
    assert len(respond(server)[0]) == 1 and len(server.asked) == 1 and len(proxy.asked) == 1
