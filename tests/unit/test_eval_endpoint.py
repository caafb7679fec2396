"""Evaluation through an OpenAI-compatible server: what it is sent, what is read, which failures pass and which end it."""

import socket
import threading
import time

import pyarrow.parquet as pq
import pytest
from model_server import CHAT, GREEDY, KEY, RAW, SAMPLED, answer, arguments, respond
from patience import seconds

from openrlhf_ebpo.eval import endpoint_questions, protocols, run
from openrlhf_ebpo.eval.endpoint import Endpoint
from openrlhf_ebpo.eval.jobs import StorageError
from openrlhf_ebpo.eval.prompts import PromptForm
from openrlhf_ebpo.generation.engines import GenerationError
from openrlhf_ebpo.redact import REDACTED, Secret
from openrlhf_ebpo.run import results

# what is sent


def test_completions_take_the_text_as_it_is_and_all_settings_of_the_protocol(serve):
    server = serve()
    protocol = protocols.override(SAMPLED, temperature=0.5, top_p=0.9, stop=("\n\n",))
    respond(server, form=PromptForm("{question}", input_template="<{}>"), protocol=protocol)
    seeds = {body.pop("seed") for _, body, _ in server.asked}
    assert len(server.asked) == len(seeds) == 4 and all(isinstance(seed, int) for seed in seeds)
    settings = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 8, "stop": ["\n\n"]}
    for path, body, _ in server.asked:
        assert path == "/v1/completions" and body == {"model": "m", "prompt": "<x>", **settings}


def test_chat_completions_take_messages_and_vllm_is_told_what_it_would_take_from_the_models_defaults(serve):
    server = serve()
    form = PromptForm(CHAT.template, True, CHAT.system, template_kwargs=(("enable_thinking", "false"),))
    respond(server, form=form, protocol=protocols.override(SAMPLED, n=1, top_k=20), is_vllm=True)
    respond(server, form=PromptForm("{question}\n", bos=True), is_vllm=True)
    (chat_path, chat, _), (raw_path, raw, _) = server.asked
    assert chat_path == "/v1/chat/completions" and raw_path == "/v1/completions"
    assert chat["messages"] == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Q: x"}]
    told = {"min_p": 0.0, "repetition_penalty": 1.0, "min_tokens": 1}
    assert told.items() <= chat.items() and told.items() <= raw.items()
    assert chat["top_k"] == 20 and chat["chat_template_kwargs"] == {"enable_thinking": False}
    assert raw["top_k"] == -1 and chat["add_special_tokens"] is False
    assert raw["add_special_tokens"] is True and raw["prompt"] == "x\n"


STRIPPED = protocols.override(protocols.get("greedy"), max_new_tokens=8, strip_think=True)


def test_a_think_that_a_text_ends_with_is_of_the_response(serve):
    server = serve(lambda handler, body, _: handler.reply(answer(body, ["so 3"])) or True)
    records, _ = respond(server, form=PromptForm("{question} <think>\n"), protocol=STRIPPED)
    assert records["t/0"]["responses"] == ["<think>so 3"]


def test_that_a_chat_template_may_begin_with_think_is_said(serve):
    said = []
    respond(serve(), form=CHAT, protocol=STRIPPED, said=said)
    (line,) = said
    assert line.startswith("warning: --strip_think: whether the server's chat template")


def test_shots_are_turns_of_a_chat_or_text_before_the_question():
    chat = endpoint_questions.asked(PromptForm("Q: {question}", True, shots=(("1+1", "2"),)), "x")
    roles = [(each["role"], each["content"]) for each in chat["messages"]]
    assert roles == [("user", "Q: 1+1"), ("assistant", "2"), ("user", "Q: x")]
    raw = endpoint_questions.asked(PromptForm("Q: {question}", shots=(("1+1", "2"),)), "x")
    assert raw == {"prompt": "Q: 1+1\n2\n\nQ: x\n"}


def test_a_field_that_a_server_refuses_is_its_error_said_once(serve):
    server = serve(lambda handler, *_: handler.reply({"error": {"message": "unknown field: seed"}}, 400) or True)
    _, failed = respond(server, form=CHAT)
    assert len(server.asked) == 1 and failed["t/0"].endswith("HTTP 400: unknown field: seed")


def test_the_key_goes_in_the_header_and_nowhere_else(serve, tmp_path, capsys, monkeypatch):
    def echo(handler, body, _):
        handler.reply(answer(body, [f"Answer: 2 {handler.headers['Authorization']}"]))
        return True

    server = serve(echo)
    monkeypatch.setenv("MY_KEY", KEY)
    run.main(arguments(tmp_path, server, "--api_key_env", "MY_KEY"))
    headers = {name.lower(): value for name, value in server.asked[0][2].items()}
    assert headers["authorization"] == f"Bearer {KEY}"
    (found,) = results.find_results(tmp_path / "out")
    rows = pq.read_table(found.path / "samples.parquet").to_pylist()
    assert {row["response"] for row in rows} == {f"Answer: 2 Bearer {REDACTED}"}
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert KEY.encode() not in written and KEY not in "".join(capsys.readouterr()) and KEY not in repr(found)


def test_seeds_are_the_same_whenever_a_question_is_asked():
    found = {endpoint_questions.seed_of(42, key, i) for key in ("a", "b") for i in range(4)}
    assert len(found) == 8 and all(0 <= seed < 2**31 for seed in found)
    assert endpoint_questions.seed_of(42, "a", 0) in found and endpoint_questions.seed_of(43, "a", 0) not in found


# what is read


def test_all_responses_of_a_question_are_one_record(serve):
    server = serve(lambda handler, body, number: handler.reply(answer(body, [f"a{body['seed']}"])) or True)
    records, failed = respond(server, protocol=SAMPLED)
    assert not failed and len(server.asked) == 4
    record = records["t/0"]
    seeds = [endpoint_questions.seed_of(42, "t/0", i) for i in range(4)]
    assert record["responses"] == [f"a{seed}" for seed in seeds] and record["lengths"] == [3] * 4
    assert record["finish_reasons"] == ["stop"] * 4 and record["seed"] == 42
    assert record["prompt_tokens"] == 2


NONSENSE = [
    {"choices": []},
    {"choices": [{"text": "a"}] * 5},
    {"choices": [{"text": 3}]},
    {"choices": [{"text": "half", "finish_reason": "abort"}]},
    {"choices": "a"},
    {"choices": [None]},
    {"choices": [{"message": {"content": 3}}]},
    {"error": {"message": "overloaded"}},
    {},
    [1],
    b"<html>Welcome</html>",
    b'{"choices": [' + b"[" * 100_000,
]


def test_an_answer_without_a_response_fails_its_question_only(serve):
    def all_but_the_last(handler, body, _):
        number = len(body["prompt"].strip()) - 1
        return number < len(NONSENSE) and (handler.reply(NONSENSE[number]) or True)

    records, failed = respond(serve(all_but_the_last), len(NONSENSE) + 1)
    assert list(records) == [f"t/{len(NONSENSE)}"] and len(failed) == len(NONSENSE)
    assert all(text.isprintable() and len(text) < 400 for text in failed.values())


def test_lengths_are_the_servers_or_said_to_be_estimates(serve):
    def uncounted(handler, body, _):
        handler.reply({"choices": [{"text": "a" * 40, "finish_reason": "length"}]})
        return True

    said = []
    records, _ = respond(serve(uncounted), said=said)
    assert records["t/0"]["lengths"] == [10] and records["t/0"]["finish_reasons"] == ["length"]
    assert any("did not count the tokens of 1 responses" in line for line in said)
    assert "prompt_tokens" not in records["t/0"]


@pytest.mark.parametrize("nonsense", [-1, 1 << 31, 1 << 50, 2.5, True, "3", None])
def test_a_count_that_cannot_be_is_not_believed(nonsense):
    assert endpoint_questions.used({"usage": {"completion_tokens": nonsense}}, "completion_tokens") is None


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


# servers that fail, hang, refuse or say nonsense


def drop(handler, *_):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    handler.connection.shutdown(socket.SHUT_RDWR)
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


PASSES = [
    lambda handler, *_: handler.reply({"error": {"message": "slow down"}}, 429, Retry_After="0.1"),
    lambda handler, *_: handler.reply({"error": {"message": "boom"}}, 500, Retry_After="0.1"),
    lambda handler, *_: handler.reply(b"<html>Bad gateway</html>", 502, Retry_After="soon"),
    drop,
]


def test_temporary_failures_are_retried(serve):
    tried = []

    def at_first(handler, body, number):
        if body["prompt"] not in tried:
            tried.append(body["prompt"])
            PASSES[len(body["prompt"].strip()) - 1](handler, body, number)
            return True

    server = serve(at_first)
    records, failed = respond(server, len(PASSES))
    assert len(records) == len(PASSES) and not failed and len(server.asked) == 2 * len(PASSES)


def test_an_answer_that_never_ends_has_a_limit(serve):
    def first_only(handler, body, number):
        if body["prompt"] == "x\n":
            trickle(handler)
            return True

    limit = seconds(0.5)
    records, failed = respond(serve(first_only), 3, request_timeout=limit)
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
def test_permanent_failures_are_not_retried(serve, status, part):
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


def test_concurrency_limit_holds(serve):
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
