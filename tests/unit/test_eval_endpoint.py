"""Evaluation through an OpenAI-compatible server: what it is sent, what is read, and what it does not get away with. The
server is a real one, in this process, and misbehaves as a test says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from openrlhf_ebpo.engines.generation import GenerationError
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import endpoint, endpoint_client, endpoint_questions, flags, protocols, report, run
from openrlhf_ebpo.eval.endpoint import Endpoint
from openrlhf_ebpo.eval.endpoint_client import Limits, Pace
from openrlhf_ebpo.eval.jobs import StorageError
from openrlhf_ebpo.eval.prompts import PromptForm
from openrlhf_ebpo.hub import results as hub_results
from openrlhf_ebpo.record import results
from openrlhf_ebpo.redact import REDACTED, Secret
from openrlhf_ebpo.space import results as space_results
from openrlhf_ebpo.space.runs import Run

KEY = "sk-proj-0123456789abcdefghij"
RAW, CHAT = PromptForm("{question}\n"), PromptForm("Q: {question}", chat_template=True, system="Be short.")
GREEDY = protocols.override(protocols.get("greedy"), max_new_tokens=8)
SAMPLED = protocols.override(protocols.get("default"), n=4, max_new_tokens=8)
CARD = {"id": "m", "owned_by": "someone"}
VLLM = {"id": "m", "owned_by": "vllm", "root": "org/model", "max_model_len": 64, "created": 1}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.misbehaviour.list(self)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((self.path, body, dict(self.headers)))
            number = len(self.server.asked)
        self.server.misbehaviour(self, body, number)

    def reply(self, content, status: int = 200, **headers) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)


def answer(body: dict, texts: list[str] | None = None, **more) -> dict:
    """As the API answers: "Answer: <length of the prompt>"."""
    said = body.get("prompt") or body["messages"][-1]["content"]
    texts = texts or [f"Answer: {len(said)}"] * body.get("n", 1)
    chat = "messages" in body
    choices = [
        {**({"message": {"role": "assistant", "content": text}} if chat else {"text": text}), "finish_reason": "stop"}
        for text in texts
    ]
    return {"choices": choices, "usage": {"prompt_tokens": len(said), "completion_tokens": 3 * len(texts)}, **more}


class Good:
    """What a server does; tests overwrite a part. cards: what it lists; None: it does not."""

    def __init__(self, behave: Callable | None = None, cards: list | None = None):
        self.behave, self.cards = behave, [CARD] if cards is None else cards

    def list(self, handler: Handler) -> None:
        handler.reply({"object": "list", "data": self.cards})

    def __call__(self, handler: Handler, body: dict, number: int) -> None:
        if self.behave is None or not self.behave(handler, body, number):
            handler.reply(answer(body))


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass  # clients hang up


@pytest.fixture
def serve(monkeypatch):
    """Start a server; its address, `asked` (path, body, headers) and `lock`."""
    monkeypatch.setattr(endpoint_client, "FIRST_PAUSE", 0.005)
    for name in ("OPENAI_API_KEY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    started = []

    def start(behave: Callable | None = None, cards: list | None = None) -> Server:
        server = Server(("127.0.0.1", 0), Handler)
        server.misbehaviour = behave if isinstance(behave, Good) else Good(behave, cards)
        server.asked, server.lock = [], threading.Lock()
        server.url = f"http://127.0.0.1:{server.server_port}/v1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def respond(server, count: int = 1, form=RAW, protocol=GREEDY, keep=None, said=None, **changes):
    """(records by key, failures) of `count` questions; changes: of the endpoint and its limits."""
    limits = {name: changes.pop(name) for name in Limits.__dataclass_fields__ if name in changes}
    asked = Endpoint(server.url, "m", Limits(**{"timeout": 20.0, "give_up_after": 20.0, **limits}), **changes)
    records: dict[str, dict] = {}
    questions = [(f"t/{i}", endpoint_questions.asked(form, "x" * (i + 1)), protocol.n) for i in range(count)]
    failed = endpoint_questions.respond(
        asked, questions, form, protocol, keep or records.__setitem__, (said if said is not None else []).append
    )
    return records, failed


# what is sent


def test_completions_take_the_text_as_it_is_and_all_settings_of_the_protocol(serve):
    server = serve()
    protocol = protocols.override(SAMPLED, temperature=0.5, top_p=0.9, stop=("\n\n",))
    respond(server, form=PromptForm("{question}", input_template="<{}>"), protocol=protocol)
    (path, body, headers), *others = server.asked
    assert path == "/v1/completions" and not others and "Authorization" not in headers
    assert isinstance(body.pop("seed"), int)
    settings = {"n": 4, "temperature": 0.5, "top_p": 0.9, "max_tokens": 8, "stop": ["\n\n"]}
    assert body == {"model": "m", "prompt": "<x>", **settings}


def test_chat_completions_take_messages_and_vllm_is_told_what_it_would_take_from_the_models_defaults(serve):
    server = serve()
    form = PromptForm(CHAT.template, True, CHAT.system, template_kwargs=(("enable_thinking", "false"),))
    respond(server, form=form, protocol=protocols.override(SAMPLED, top_k=20), is_vllm=True)
    respond(server, form=PromptForm("{question}\n", bos=True), is_vllm=True)
    (chat_path, chat, _), (raw_path, raw, _) = server.asked
    assert chat_path == "/v1/chat/completions" and raw_path == "/v1/completions"
    assert chat["messages"] == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Q: x"}]
    told = {"min_p": 0.0, "repetition_penalty": 1.0, "min_tokens": 1, "return_token_ids": True}
    assert told.items() <= chat.items() and told.items() <= raw.items()
    assert chat["top_k"] == 20 and chat["chat_template_kwargs"] == {"enable_thinking": False}
    assert raw["top_k"] == -1 and chat["add_special_tokens"] is False
    assert raw["add_special_tokens"] is True and raw["prompt"] == "x\n"


def test_a_begin_token_that_the_servers_template_has_already_is_not_put_there_twice(serve):
    def behave(handler, body, _):
        begun = [1] * (1 + body["add_special_tokens"])
        handler.reply(answer(body, prompt_token_ids=[*begun, 7]))
        return True

    server = serve(behave)
    records, _ = respond(server, form=CHAT, is_vllm=True)
    assert len(records) == 1
    with pytest.raises(GenerationError, match="which has one already: --no-add_bos asks with that one"):
        respond(server, form=replace(CHAT, bos=True), is_vllm=True)


def test_shots_are_turns_of_a_chat_or_text_before_the_question():
    chat = endpoint_questions.asked(PromptForm("Q: {question}", True, shots=(("1+1", "2"),)), "x")
    roles = [(each["role"], each["content"]) for each in chat["messages"]]
    assert roles == [("user", "Q: 1+1"), ("assistant", "2"), ("user", "Q: x")]
    raw = endpoint_questions.asked(PromptForm("Q: {question}", shots=(("1+1", "2"),)), "x")
    assert raw == {"prompt": "Q: 1+1\n2\n\nQ: x\n"}


def test_a_model_that_takes_only_the_newer_name_of_the_length_is_asked_so(serve):
    def newer(handler, body, _):
        if "max_tokens" in body:
            handler.reply({"error": {"message": "'max_tokens' is not supported: use 'max_completion_tokens'"}}, 400)
            return True

    server = serve(newer)
    records, failed = respond(server, 3, form=CHAT, concurrency=1)
    assert len(records) == 3 and not failed and len(server.asked) == 4
    assert server.asked[-1][1]["max_completion_tokens"] == 8


def test_a_server_that_takes_no_seed_is_asked_without(serve):
    def seedless(handler, body, _):
        if "seed" in body:
            handler.reply({"error": {"message": "unknown field: seed"}}, 400)
            return True

    server, said = serve(seedless), []
    records, failed = respond(server, 3, said=said, concurrency=1)
    assert len(records) == 3 and not failed and len(server.asked) == 4 and "note: the server takes no seed" in said


def test_the_key_goes_in_the_header_and_nowhere_else(serve, tmp_path, capsys, monkeypatch):
    def echo(handler, body, _):
        handler.reply(answer(body, [f"Answer: 2 {handler.headers['Authorization']}"]))
        return True

    server = serve(echo)
    monkeypatch.setenv("MY_KEY", KEY)
    run.main(arguments(tmp_path, server, "--api_key_env", "MY_KEY"))
    assert server.asked[0][2]["Authorization"] == f"Bearer {KEY}"
    (found,) = results.find_results(tmp_path / "out")
    rows = pq.read_table(found.path / "samples.parquet").to_pylist()
    assert {row["response"] for row in rows} == {f"Answer: 2 Bearer {REDACTED}"}
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert KEY.encode() not in written and KEY not in "".join(capsys.readouterr()) and KEY not in repr(found)


# several responses to a question


def test_one_request_brings_all_responses_of_a_question(serve):
    server = serve(lambda handler, body, _: handler.reply(answer(body, ["a", "bb", "", "Answer: 1"])) or True)
    records, failed = respond(server, protocol=SAMPLED)
    assert not failed and len(server.asked) == 1
    record = records["t/0"]
    assert record["responses"] == ["a", "bb", "", "Answer: 1"] and sum(record["lengths"]) == 12
    assert record["finish_reasons"] == ["stop"] * 4 and record["seed"] == 42
    assert record["prompt_tokens"] == 2


@pytest.mark.parametrize("refuses", [False, True])
def test_a_server_that_gives_one_response_to_a_request_is_asked_for_each(serve, refuses):
    def one(handler, body, _):
        if refuses and "n" in body:
            handler.reply({"error": {"message": "n must be 1"}}, 400)
        else:
            handler.reply(answer(body, ["Answer: 3"]))
        return True

    server, said = serve(one), []
    records, failed = respond(server, 3, protocol=SAMPLED, said=said, concurrency=1)
    assert not failed and all(len(record["responses"]) == 4 for record in records.values())
    seeds = [body["seed"] for _, body, _ in server.asked]
    assert len(set(seeds)) >= 12 and any("asked for one by one" in line for line in said)
    assert sum("n" not in body for _, body, _ in server.asked) >= 9


def test_seeds_are_the_same_whenever_a_question_is_asked():
    found = {endpoint_questions.seed_of(42, key, i) for key in ("a", "b") for i in range(4)}
    assert len(found) == 8 and all(0 <= seed < 2**31 for seed in found)
    assert endpoint_questions.seed_of(42, "a", 0) in found and endpoint_questions.seed_of(43, "a", 0) not in found


@pytest.mark.parametrize(
    "content",
    [
        {"choices": []},
        {"choices": [{"text": "a"}] * 5},
        {"choices": [{"text": 3}]},
        {"choices": [{"text": "half", "finish_reason": "abort"}]},
        {"choices": "a"},
        {"choices": [None]},
        {"choices": [{"message": {"content": 3}}]},
        {},
    ],
)
def test_an_answer_without_responses_fails_its_question_only(serve, content):
    def first_only(handler, body, _):
        if body["prompt"] == "x\n":
            handler.reply(content)
            return True

    records, failed = respond(serve(first_only), 3)
    assert set(records) == {"t/1", "t/2"} and "answered without 1 choices" in failed["t/0"]


# what is read


def test_lengths_are_the_servers_or_said_to_be_estimates(serve):
    def uncounted(handler, body, _):
        handler.reply({"choices": [{"text": "a" * 40, "finish_reason": "length"}]})
        return True

    said = []
    records, _ = respond(serve(uncounted), said=said)
    assert records["t/0"]["lengths"] == [10] and records["t/0"]["finish_reasons"] == ["length"]
    assert any("did not count the tokens of 1 responses" in line for line in said)
    assert "prompt_tokens" not in records["t/0"]
    for nonsense in (-1, 1 << 50, 2.5, True, "3", None):
        found = endpoint_questions.responses_of(
            {"choices": [{"text": "a" * 8}], "usage": {"completion_tokens": nonsense}}, 1
        )
        assert found[0].length == 2 and not found[0].counted
    counted = {"choices": [{"text": "a", "token_ids": [1, 2, 3]}, {"text": "b", "token_ids": [4]}]}
    assert [each.length for each in endpoint_questions.responses_of(counted, 2)] == [3, 1]


@pytest.mark.parametrize("total", [0, 1, 7, 1000])
def test_a_sum_is_shared_out_whole(total):
    found = endpoint_questions.shared(total, [0, 5, 300, 0])
    assert sum(found) == total and all(part >= 0 for part in found) and found[2] == max(found)


def test_a_server_with_a_shorter_limit_of_its_own_is_noticed(serve):
    def cut(handler, body, _):
        handler.reply({"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"completion_tokens": 5}})
        return True

    said = []
    respond(serve(cut), 2, said=said)
    assert any("cut 2 responses before --max_new_tokens 8" in line for line in said)


def test_responses_that_the_server_withheld_are_counted_aloud(serve):
    filtered = {"choices": [{"text": "", "finish_reason": "content_filter"}]}
    said = []
    records, _ = respond(serve(lambda handler, *_: handler.reply(filtered) or True), 2, said=said)
    assert len(records) == 2 and any("withheld 2 responses (content_filter)" in line for line in said)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "4"}, "4"),
        ({"content": None}, ""),
        ({"content": "4", "reasoning": "2+2"}, "<think>\n2+2</think>\n\n4"),
        ({"content": None, "reasoning_content": "2+"}, "<think>\n2+"),
        ({"content": "half \ud83d of a sign"}, "half ? of a sign"),
    ],
)
def test_thoughts_that_come_apart_stand_before_the_answer(message, text):
    assert endpoint_questions.text_of({"message": message}) == text


# what goes wrong, and passes


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


# the address, the key, the list of models


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("openai:", "that is no address of a server"),
        ("openai:gpt-5", "that is no address of a server"),
        ("openai:ftp://h/v1#m", "that is no address of a server"),
        ("openai:http://h/v1", "which of the server's models?"),
        ("openai:http://h/v1#", "which of the server's models?"),
        ("openai:http://h/v1#a\nb", "which of the server's models?"),
        ("openai:http://h:99999/v1#m", "out of range"),
        ("openai:http://[::1/v1#m", "IPv6"),
        ("openai:http://h/v 1#m", "that is no address of a server"),
        ("openai:https://me:hunter2@h/v1#m", "no name or password in an address"),
        ("openai:me:hunter2@h/v1#m", "no name or password in an address"),
        ("openai:http:/me:hunter2@h/v1#m", "no name or password in an address"),
        ("openai:https://h/v1?key=hunter2#m", "is not sent"),
    ],
)
def test_an_address_that_cannot_be_asked_is_refused(model, part):
    with pytest.raises(UsageError) as stopped:
        endpoint.parsed(model)
    assert part in str(stopped.value) and "hunter2" not in str(stopped.value) and str(stopped.value).isprintable()


def test_an_address_is_its_url_and_all_behind_the_first_number_sign():
    assert endpoint.parsed("openai:https://h/v1/#Qwen/Qwen3-8B") == ("https://h/v1", "Qwen/Qwen3-8B")
    assert endpoint.parsed("openai:http://[::1]:8000#ft:a#b") == ("http://[::1]:8000", "ft:a#b")


@pytest.mark.parametrize(
    ("variable", "url", "sent", "part"),
    [
        (None, "https://host/v1", True, ""),
        (None, "http://localhost:8000/v1", True, ""),
        (None, "http://[::1]:8000/v1", True, ""),
        (None, "http://10.0.0.1/v1", False, "is not sent"),
        ("OPENAI_API_KEY", "http://10.0.0.1/v1", True, "over plain http"),
        (None, "http://localhost.evil.example/v1", False, "is not sent"),
    ],
)
def test_the_key_does_not_travel_openly_unless_one_says_so(monkeypatch, variable, url, sent, part):
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\n")
    said = []
    found = endpoint.key_of(variable, url, said.append)
    assert (found == KEY) == sent and part in "".join(said) and bool(part) == bool(said)
    assert KEY not in repr(found) and KEY not in "".join(said)


def test_a_key_that_is_not_there_or_none_is_said_without_repeating_it(monkeypatch):
    monkeypatch.delenv(KEY.replace("-", "_"), raising=False)
    with pytest.raises(UsageError) as stopped:
        endpoint.key_of(KEY.replace("-", "_"), "https://h/v1", print)
    assert "0123456789" not in str(stopped.value)
    monkeypatch.setenv("OPENAI_API_KEY", "two words")
    with pytest.raises(UsageError, match="no server takes as a key"):
        endpoint.key_of(None, "https://h/v1", print)


def connected(server, name: str = "m") -> tuple[Endpoint, list[str]]:
    said: list[str] = []
    return endpoint.connect(parsed(["--model", f"openai:{server.url}#{name}"]), said.append), said


def parsed(argv: list[str]):
    from openrlhf_ebpo.command import Parser

    parser = Parser("eval", "")
    flags.add_flags(parser)
    return parser.parse_args(["--tasks", "aime24", *argv])


def test_what_the_server_says_of_the_model_is_part_of_its_identity(serve):
    found, said = connected(serve(cards=[CARD, VLLM | {"id": "n"}]), name="n")
    assert found.is_vllm and found.max_model_len == 64 and not said
    place = found.url.removeprefix("http://")
    assert found.identity() == {"model": f"openai:{place}#n", "served": "root org/model, max_model_len 64"}
    found, said = connected(serve())
    assert found.identity()["served"] == "" and "does not say that it is vLLM" in said[0]


def test_a_model_that_is_not_listed_is_named_with_those_that_are(serve):
    found, said = connected(serve(cards=[{"id": "Qwen/Qwen3-8B\x1b[1m"}, {"id": 3}, None]), name="Qwen/Qwen3-8")
    assert "does not list 'Qwen/Qwen3-8'; of its 2 models: Qwen/Qwen3-8B [1m" in said[0] and not found.root


@pytest.mark.parametrize(
    "card", [{"root": 3, "max_model_len": "x"}, {"root": "", "max_model_len": -1}, {"max_model_len": True}]
)
def test_a_list_of_nonsense_is_taken_for_nothing(serve, card):
    found, _ = connected(serve(cards=[CARD | card]))
    assert (found.root, found.max_model_len) == ("", None)


@pytest.mark.parametrize(
    ("reply", "part"),
    [
        (lambda handler: handler.reply({"error": {"message": "bad key"}}, 401), "HTTP 401: bad key: is the key"),
        (lambda handler: handler.reply(b"<html>hello</html>"), "no JSON object: <html>hello"),
        (lambda handler: handler.reply(b"", 301, Location="http://other/"), "a redirect to http://other/"),
        (lambda handler: handler.reply({}, 503), "HTTP 503"),
    ],
)
def test_a_server_that_is_none_is_refused_before_anything_is_asked(serve, reply, part):
    behave = Good()
    behave.list = reply
    with pytest.raises(UsageError) as stopped:
        connected(serve(behave))
    assert part in str(stopped.value)


def test_a_server_without_a_list_is_asked_all_the_same_and_one_that_is_down_is_not(serve):
    behave = Good()
    behave.list = lambda handler: handler.reply({"error": "none"}, 404)
    found, said = connected(serve(behave))
    assert "does not list its models" in said[0] and found.name == "m"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(UsageError, match="is the server up"):
        endpoint.connect(parsed(["--model", f"openai:http://127.0.0.1:{port}/v1#m"]))


@pytest.mark.parametrize(
    ("changes", "form", "part"),
    [
        ({"top_k": 5, "min_p": 0.1}, RAW, "--top_k, --min_p: the API has no such setting"),
        ({"template_kwargs": (("a", "1"),)}, CHAT, "--template_kwargs: "),
        ({}, PromptForm("{question}", bos=True), "--add_bos: "),
    ],
)
def test_settings_that_only_vllm_has_are_refused_elsewhere(changes, form, part):
    protocol = protocols.override(SAMPLED, **changes)
    with pytest.raises(UsageError, match=part):
        endpoint.check(Endpoint("http://h", "m"), protocol, form)
    endpoint.check(Endpoint("http://h", "m", is_vllm=True), protocol, form)


def test_a_model_that_is_too_short_for_the_protocol_is_refused():
    with pytest.raises(UsageError, match="--max_new_tokens 8: m on this server reads 8 tokens"):
        endpoint.check(Endpoint("http://h", "m", max_model_len=8), GREEDY, RAW)


# the command


def arguments(folder: Path, server, *more: str) -> list[str]:
    rows = [{"question": f"1+{i}?", "answer": "2"} for i in range(6)]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = f"openai:{server.url}#m"
    argv = ["--model", model, "--tasks", f"file:{folder}/q.jsonl", "--output_dir", str(folder / "out")]
    return [*argv, "--protocol", "released", "--n", "1", "--no-chat_template", "--template", "raw", *more]


def error_of(argv: list[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        run.main(argv)
    return str(stopped.value.code)


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (
            ["--num_engines", "2", "--max_model_len", "99999"],
            ["--num_engines: the server", "--max_model_len: the server"],
        ),
        (["--concurrency", "0", "--request_timeout", "-1"], ["--concurrency 0 makes", "--request_timeout -1 makes"]),
        (["--api_key_env", KEY], ["takes the name of a variable, not the key"]),
    ],
)
def test_flags_that_do_not_go_with_a_server_are_named(serve, tmp_path, more, parts):
    error = error_of(arguments(tmp_path, serve(), *more))
    assert all(part in error for part in parts) and KEY not in error and not (tmp_path / "out").exists()


def test_flags_of_servers_do_not_go_with_other_models(tmp_path):
    error = error_of(["--model", str(tmp_path), "--tasks", "aime24", "--output_dir", "out", "--concurrency", "3"])
    assert "--concurrency goes with --model openai:URL#NAME" in error


def test_ctrl_c_leaves_the_finished_questions_and_the_command_goes_on_with_the_others(serve, tmp_path, capsys):
    def interrupt(handler, body, number):
        if number == 4:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    server = serve(interrupt, cards=[VLLM])
    more = ("--concurrency", "1", "--max_new_tokens", "8")
    with pytest.raises(SystemExit, match="130"):
        run.main(arguments(tmp_path, server, *more))
    assert "interrupted; 3 of 6 questions are in" in capsys.readouterr().err
    before = [body["prompt"] for _, body, _ in server.asked[:3]]
    server.asked.clear()
    server.misbehaviour.cards = [VLLM | {"root": "org/other"}]
    error = error_of(arguments(tmp_path, server, *more))
    assert "served: 'root org/model, max_model_len 64' there, 'root org/other, max_model_len 64' now" in error
    server.misbehaviour.cards = [VLLM | {"created": 2}]
    run.main(arguments(tmp_path, server, *more))
    after = [body["prompt"] for _, body, _ in server.asked]
    assert len(after) == 3 and len({*before, *after}) == 6
    (found,) = results.find_results(tmp_path / "out")
    assert found.summary["model"] == f"openai:{server.url}#m" and found.summary["seeds"] == [42]
    assert len(pq.read_table(found.path / "samples.parquet")) == 6
    run.main(arguments(tmp_path, server, *more))
    assert len(server.asked) == 3 and "finished already" in capsys.readouterr().out


def test_a_command_with_arguments_of_the_chat_template_can_be_repeated(serve, tmp_path, capsys):
    refuse = [True]

    def behave(handler, body, _):
        if refuse and body["messages"][0]["content"] == "1+2?":
            handler.reply({"error": {"message": "not this"}}, 400)
            return True

    server = serve(behave, cards=[VLLM])
    argv = arguments(tmp_path, server, "--chat_template", "--template_kwargs", "effort=[1]", "--max_new_tokens", "8")
    assert "not this" in error_of(argv)
    refuse.clear()
    run.main(argv)
    assert len(server.asked) == 7
    run.main(argv)
    assert len(server.asked) == 7 and "finished already" in capsys.readouterr().out


def test_report_hub_and_space_take_such_results_but_no_card_of_a_model(serve, tmp_path):
    server = serve()
    run.main(arguments(tmp_path, server))
    model = f"openai:{server.url}#m"
    page = Path(report.write_report([tmp_path / "out"])).read_text()
    assert model in page
    rows = hub_results.evaluations.rows_of(results.find_results(tmp_path / "out"))
    assert {row["model"] for row in rows} == {model} and rows[0]["model_identity"].startswith("openai:127.0.0.1")
    card = hub_results.data_card(rows, "me/results", None, hub_results.NO_LINKS)
    assert model in card
    (shown,), problems = space_results.find(Run("served", tmp_path / "out", 0))
    assert shown.task == "file-q" and not problems
    argv = [str(tmp_path / "out"), "--repo", "me/results", "--dry_run", "--model", "me/model"]
    with pytest.raises(SystemExit, match="behind a server") as stopped:
        hub_results.main(argv)
    assert "without --model" in str(stopped.value)


def test_neither_torch_nor_vllm_nor_ray_is_loaded_on_this_side(serve, tmp_path):
    code = "import sys\nfrom openrlhf_ebpo.eval import run\nrun.main(sys.argv[1:])\nprint(*sys.modules)"
    argv = [sys.executable, "-c", code, *arguments(tmp_path, serve())]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "vllm", "ray", "openrlhf", "transformers"} & set(done.stdout.split())


def test_one_question_without_responses_leaves_the_result_open(serve, tmp_path):
    refuse = [True]

    def behave(handler, body, _):
        if refuse and body["prompt"] == "1+2?":
            handler.reply({"error": {"message": "not this"}}, 400)
            return True

    server = serve(behave)
    error = error_of(arguments(tmp_path, server))
    assert "1 questions got no responses, such as file-q/" in error and "not this" in error
    assert "5 of 6 questions are in" in error and not list((tmp_path / "out").rglob("summary.json"))
    refuse.clear()
    run.main(arguments(tmp_path, server))
    assert len(server.asked) == 7 and list((tmp_path / "out").rglob("summary.json"))


def test_the_flags_defaults_are_those_of_the_limits():
    args = parsed(["--model", "openai:http://h/v1#m"])
    assert endpoint.limits_of(args) == Limits() and flags.ENGINE_FLAGS.items() <= vars(args).items()
