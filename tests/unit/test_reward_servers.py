"""Reward servers that fail in every way: the cause reaches the sample, within one deadline. A real server on this
machine."""

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from openrlhf_ebpo.rewards.processes import servers
from openrlhf_ebpo.rewards.processes.reward_values import RewardError
from openrlhf_ebpo.rewards.processes.servers import RewardServers, Server, bare_address, excerpt
from openrlhf_ebpo.rewards.processes.sources import MIN_FAILED, NoReplyError

SEEN: Counter = Counter()


class Handler(BaseHTTPRequestHandler):
    """The first part of the path says how it answers."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        self.asked = json.loads(self.rfile.read(size))
        SEEN[self.path] += 1
        with contextlib.suppress(OSError):
            getattr(self, self.path.partition("?")[0].strip("/").replace("/", "_"))()

    def say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def good(self):
        self.say(
            200, json.dumps({"rewards": [float(len(self.asked["query"][0]))], "labels": self.asked["labels"]}).encode()
        )

    def at_first_not(self):
        return self.good() if SEEN[self.path] > 2 else self.say(503, b"warming up")

    def every_other(self):
        return self.good() if SEEN[self.path] % 2 == 0 else self.say(503, b"busy")

    def error(self):
        self.say(500, b"Traceback: no CUDA\x1b[31m at http://u:secret@host/x?token=abcdefghijk\n" + b"x" * 10_000)

    def refused(self):
        self.say(422, b'{"detail": "labels: field required"}')

    def html(self):
        self.say(200, b"<html>Sign in</html>", Content_Type="text/html")

    def nested(self):
        self.say(200, b"[" * 200_000)

    def drips(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _ in range(100):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.1)

    def hangs(self):
        time.sleep(20)

    def hangs_up(self):
        self.close_connection = True

    def slash(self):
        self.say(307, b"", Location="/good")

    def log_message(self, *_):
        pass


class HttpServer(ThreadingHTTPServer):
    request_queue_size = 256  # of five, connections beyond them are tried again by the kernel, seconds later


@pytest.fixture(scope="module")
def address():
    server = HttpServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def answer(address: str, paths, seconds: float):
    """The answer, or the error's text."""
    addresses = [path if "://" in path else address + path for path in paths]
    try:
        return await RewardServers(addresses, seconds).ask(["query"], ["prompt"], ["label"])
    except RewardError as error:
        return str(error)


@pytest.fixture
def ask(address):
    return lambda *paths, seconds: asyncio.run(answer(address, paths, seconds))


def test_a_good_server_gets_what_openrlhf_sends(ask):
    assert ask("/good", seconds=60) == {"rewards": [5.0], "labels": ["label"]}


def test_it_is_asked_again_and_then_the_next_one(ask):
    assert ask("/at/first/not", seconds=60)["rewards"] == [5.0]
    assert ask("/error", "/good", seconds=60)["rewards"] == [5.0]
    assert ask("http://127.0.0.1:1/", "/good", seconds=60)["rewards"] == [5.0]


CAUSES = {
    "/error": "answered HTTP 500: Traceback: no CUDA [31m at http://<redacted>@host/x xxx",
    "/refused": '/refused answered HTTP 422: {"detail": "labels: field required"}',
    "/html": "/html answered with what is not JSON: <html>Sign in</html>",
    "/nested": "answered with what is not JSON: [[[[",
    "/drips": "the reward server took longer than 1 s (--reward.timeout)",
    "/hangs": "the reward server took longer than 1 s (--reward.timeout)",
    "/hangs_up": "disconnected",
    "http://127.0.0.1:1/reward?key=abc": "http://127.0.0.1:1/reward: ",
    "http://user:word@127.0.0.1:1/": "http://127.0.0.1:1/: ",
    "http://": "cannot be asked",
}


@pytest.fixture(scope="module")
def causes(address):
    """What is said of each of CAUSES, asked at once: most are asked again until their time is over."""

    async def ask_all():
        limits = [1.0 if "than 1 s" in shown else 8.0 for shown in CAUSES.values()]  # a busy machine answers late
        return await asyncio.gather(*(answer(address, [path], s) for path, s in zip(CAUSES, limits, strict=True)))

    return dict(zip(CAUSES, asyncio.run(ask_all()), strict=True))


@pytest.mark.parametrize("path", CAUSES)
def test_the_cause_is_said_without_secrets(causes, path):
    error = causes[path]
    assert CAUSES[path] in error
    assert not {"token", "secret", "key=abc", "word@"} & set(error.split()) and "token=" not in error
    assert len(error) < 700 and error.isprintable()


def test_a_redirect_is_followed(ask):
    assert ask("/slash", seconds=60)["rewards"] == [5.0]


def test_what_would_not_change_is_not_asked_again(ask):
    before = SEEN["/refused"]
    ask("/refused", seconds=5)
    assert SEEN["/refused"] == before + 1


def together(reward_servers: RewardServers, times: int) -> list:
    async def one():
        try:
            return await reward_servers.ask(["q"], ["p"], ["l"])
        except RewardError as error:
            return str(error)

    async def gather():
        return await asyncio.gather(*(one() for _ in range(times)))

    return asyncio.run(gather())


def test_one_that_hangs_leaves_enough_time_for_the_next(address):
    pair = RewardServers([f"{address}/hangs", f"{address}/good"], 4.0)
    found = together(pair, 4 * MIN_FAILED)
    assert pair.failure is None
    assert [each["rewards"] for each in found] == [[1.0]] * len(found)


def test_one_that_is_down_is_asked_after_the_others_and_later_in_turn_again(address, monkeypatch):
    down, post, asked = f"{address}/hangs?down", servers.post, []

    async def counted(address: str, body: dict):  # where it is sent: a busy machine's server sees it later
        asked.append(address)
        return await post(address, body) if address == down else {"rewards": [1.0]}  # in time on a busy machine too

    monkeypatch.setattr(servers, "post", counted)
    pair = RewardServers([down, f"{address}/good"], 1.0)
    while asked.count(down) < 3 * MIN_FAILED:
        together(pair, 2 * MIN_FAILED)
    before = asked.count(down)
    together(pair, 2 * MIN_FAILED)
    assert asked.count(down) == before
    monkeypatch.setattr(servers, "REST_TIMES", 0)
    together(pair, 2)
    assert asked.count(down) == before + 1 and pair.failure is None


def test_one_that_answers_in_between_is_not_down(address):
    sometimes, body = Server(f"{address}/every/other"), {"query": ["q"], "labels": ["l"]}

    async def ask(times: int) -> None:
        for _ in range(times):
            with contextlib.suppress(NoReplyError):
                await sometimes.ask(body, 60)

    asyncio.run(ask(2 * MIN_FAILED))
    assert SEEN["/every/other"] == 2 * MIN_FAILED and not sometimes.is_down(0)


def test_all_that_hang_end_the_run(address):
    hanging = RewardServers([f"{address}/hangs?1", f"{address}/hangs?2"], 1.0)
    found = [each for _ in range(3) for each in together(hanging, MIN_FAILED)]
    assert found[-1] == hanging.failure and "no answer in" in hanging.failure


def test_a_server_that_does_not_answer_is_named_and_not_asked_again(address, monkeypatch):
    monkeypatch.setattr(servers, "MAX_CONCURRENT_REQUESTS", MIN_FAILED)
    silent = RewardServers([f"{address}/error"], 4.0)
    found = together(silent, 20 * MIN_FAILED)
    assert found[-1] == silent.failure and "no reward server has given a reward for" in silent.failure
    assert "(--reward.timeout)" in silent.failure


def test_one_that_fails_often_is_asked_on_while_it_sometimes_answers(address):
    half = RewardServers([f"{address}/refused", f"{address}/good"], 0.01)
    half._seconds = 30.0
    together(half, 8 * MIN_FAILED)
    assert half.failure is None


def test_refusals_of_a_moment_are_no_end(address):
    """Bad requests, which fail at once, are counted as failed rewards; only time without an answer ends a run."""
    quick = RewardServers([f"{address}/refused"], 60.0)
    together(quick, 2 * MIN_FAILED)
    assert quick.failure is None


def test_addresses_and_texts_are_shown_without_what_lets_somebody_in():
    assert bare_address("https://user:word@host:8000/path/x?token=1#y") == "https://host:8000/path/x"
    assert excerpt("a\n\tb\x00c") == "a b c"
    assert excerpt("") == "(nothing)"
