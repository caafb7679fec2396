"""Evaluation through an OpenAI-compatible server: what it is sent, and what is read."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from model_server import CHAT, KEY, SAMPLED, answer, arguments, respond

from openrlhf_ebpo.eval import endpoint_questions, protocols, run
from openrlhf_ebpo.eval.prompts import PromptForm
from openrlhf_ebpo.generation.engines import GenerationError
from openrlhf_ebpo.redact import REDACTED
from openrlhf_ebpo.run import results

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


def thinking_server(serve, *end: str, texts=("12 Answer: 3",), **message):
    """vLLM's, whose chat template ends with the tokens `end`, and whose answer has `texts` or `message`."""

    def behave(handler, body, _):
        if handler.path == "/tokenize":
            assert body["chat_template_kwargs"] == {"enable_thinking": True} and body["messages"][-1]["role"] == "user"
            handler.reply({"count": 9, "tokens": [1], "token_strs": ["<s>", "?", *end]})
        else:
            found = answer(body, list(texts))
            found["choices"][0].get("message", {}).update(message)
            handler.reply(found)
        return True

    return serve(behave)


THINKING = PromptForm("{question}", True, template_kwargs=(("enable_thinking", "true"),))
STRIPPED = protocols.override(protocols.get("greedy"), max_new_tokens=8, strip_think=True)


@pytest.mark.parametrize(
    ("end", "message", "recorded"),
    [
        (["<think>", "Ċ"], {}, "<think>12 Answer: 3"),
        (["Ġ<", "th", "ink", ">", "ĊĊ"], {}, "<think>12 Answer: 3"),
        (["▁<think>", "<0x0A>"], {}, "<think>12 Answer: 3"),
        (["<think>", "ĊĊ", "</think>", "ĊĊ"], {}, "12 Answer: 3"),
        (["<think>"], {"content": "3", "reasoning": "1+2"}, "<think>\n1+2</think>\n\n3"),
        (["<think>"], {"content": "<think>a</think>3"}, "<think>a</think>3"),
        ([], {}, "12 Answer: 3"),
    ],
)
def test_a_think_that_the_servers_template_has_begun_is_of_the_response(serve, end, message, recorded):
    server, said = thinking_server(serve, *end, **message), []
    records, _ = respond(server, 2, form=THINKING, protocol=STRIPPED, said=said, is_vllm=True)
    assert [record["responses"] for record in records.values()] == [[recorded]] * 2 and not said
    assert [path for path, *_ in server.asked].count("/tokenize") == 1
    respond(server, form=THINKING, protocol=protocols.get("greedy"), is_vllm=True)
    assert server.asked[-1][0] == "/v1/chat/completions" and len(server.asked) == 4, "asked for --strip_think alone"


def test_so_is_one_that_a_text_ends_with(serve):
    server = serve(lambda handler, body, _: handler.reply(answer(body, ["so 3"])) or True)
    records, _ = respond(server, form=PromptForm("{question} <think>\n"), protocol=STRIPPED)
    assert records["t/0"]["responses"] == ["<think>so 3"] and len(server.asked) == 1


@pytest.mark.parametrize(
    ("reply", "is_vllm", "why"),
    [
        (({"error": {"message": "no such path"}}, 404), True, "HTTP 404"),
        (({"error": {"message": "forbidden"}}, 403), True, "HTTP 403"),
        (({"count": 3, "token_strs": None}, 200), True, "its answer has no tokens"),
        (({"token_strs": ["a", 7]}, 200), True, "its answer has no tokens"),
        (({}, 200), False, "it does not say that it is vLLM"),
    ],
)
def test_where_a_server_does_not_show_its_template_that_is_said(serve, reply, is_vllm, why):
    def behave(handler, body, _):
        if handler.path == "/tokenize":
            handler.reply(*reply)
        return handler.path == "/tokenize"

    server, said = serve(behave), []
    records, _ = respond(server, form=CHAT, protocol=STRIPPED, said=said, is_vllm=is_vllm)
    assert len(records) == 1 and not records["t/0"]["responses"][0].startswith("<think>")
    (line,) = said
    assert line.startswith("warning: --strip_think: whether the server's chat template") and why in line


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


BOTH = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."


def refusing(serve, message: str, *fields: str):
    """A server that refuses requests with all of these fields."""

    def behave(handler, body, _):
        if set(fields) <= body.keys():
            handler.reply({"error": {"message": message}}, 400)
            return True

    return serve(behave)


@pytest.mark.parametrize(
    ("changes", "message", "fields", "lacks"),
    [
        ({}, "Unsupported parameter: 'top_p' is not supported with this model.", ["top_p"], {"top_p"}),
        ({}, BOTH, ["temperature", "top_p"], {"top_p"}),
        ({"temperature": 0.5}, BOTH, ["temperature", "top_p"], {"top_p"}),
        ({"top_p": 0.9}, BOTH, ["temperature", "top_p"], {"temperature"}),
        ({}, "Unsupported value: 'temperature' does not support 1.0", ["temperature"], {"temperature"}),
        ({}, "topP is unknown", ["top_p"], {"top_p"}),
    ],
)
def test_what_a_server_does_not_take_is_left_out_where_the_api_means_the_same(serve, changes, message, fields, lacks):
    server, said = refusing(serve, message, *fields), []
    protocol = protocols.override(SAMPLED, **changes)
    records, failed = respond(server, 3, protocol=protocol, said=said, concurrency=1)
    assert len(records) == 3 and not failed and len(server.asked) == 4
    (name,) = lacks
    assert {"temperature", "top_p"} - server.asked[-1][1].keys() == lacks
    assert f"note: the server takes no {name}: 12 responses were asked for without" in "".join(said)
    assert records["t/2"]["facts"] == {f"no_{name}": 4}


@pytest.mark.parametrize(
    ("changes", "message", "part"),
    [
        ({"temperature": 0.0, "n": 1}, "Unsupported value: 'temperature' does not support 0", "--temperature 0"),
        ({"temperature": 0.6, "top_p": 0.9}, BOTH, "--top_p 0.9 and --temperature 0.6"),
    ],
)
def test_what_the_api_would_mean_otherwise_stays_refused_with_its_flag(serve, changes, message, part):
    server = refusing(serve, message, "temperature")
    _, failed = respond(server, protocol=protocols.override(SAMPLED, **changes))
    assert f"(of this protocol: {part})" in failed["t/0"]
    assert all("temperature" in body for _, body, _ in server.asked)


def test_vllm_is_told_all_and_a_refusal_for_another_cause_teaches_nothing(serve):
    server = refusing(serve, "top_p", "top_p")
    _, failed = respond(server, protocol=SAMPLED, is_vllm=True)
    assert "--top_p 1" in failed["t/0"] and all("top_p" in body for _, body, _ in server.asked)

    def poison(handler, body, _):
        if body["prompt"] == "x\n":
            handler.reply({"error": {"message": "filtered: a text about temperature"}}, 400)
            return True

    server, said = serve(poison), []
    _, failed = respond(server, 3, said=said, protocol=SAMPLED, concurrency=1)
    assert list(failed) == ["t/0"] and not said and {"temperature", "top_p"} <= server.asked[-1][1].keys()


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
    for nonsense in (-1, 1 << 31, 1 << 39, 1 << 50, 2.5, True, "3", None):
        usage = {"completion_tokens": nonsense, "prompt_tokens": nonsense}
        found = endpoint_questions.responses_of({"choices": [{"text": "a" * 8}], "usage": usage}, 1)
        assert found[0].prompt_tokens is None
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


@pytest.mark.parametrize(("exact", "noticed"), [(True, True), (False, False)])
def test_so_is_one_that_cuts_several_responses_where_each_is_counted(serve, exact, noticed):
    def cut(handler, body, _):
        ids = {"token_ids": [1] * 5} if exact else {}
        choices = [{"text": "a", "finish_reason": "length", **ids} for _ in range(body["n"])]
        handler.reply({"choices": choices, "usage": {"completion_tokens": 20}})
        return True

    said = []
    records, _ = respond(serve(cut), 2, said=said, protocol=SAMPLED, is_vllm=True)
    assert records["t/0"]["lengths"] == [5] * 4
    assert any("cut 8 responses before --max_new_tokens 8" in line for line in said) == noticed


def test_a_count_that_cannot_be_is_not_believed_and_the_result_is_written(serve, tmp_path, capsys):
    def boast(handler, body, _):
        handler.reply(answer(body, usage={"completion_tokens": 1 << 39, "prompt_tokens": 1 << 39}))
        return True

    run.main(arguments(tmp_path, serve(boast)))
    (found,) = results.find_results(tmp_path / "out")
    assert found.samples.lengths.max() < 10 and found.summary["tokens"]["prompt"] is None
    assert "did not count the tokens of 6 responses" in capsys.readouterr().err + str(found.summary["task"]["notes"])
    much, little = (
        endpoint_questions.responses_of({"choices": [{"text": ""}], "usage": {"completion_tokens": each}}, 1, (), 128)
        for each in (129, 128)
    )
    assert not much[0].counted and little[0].length == 128


STOPPED = protocols.override(SAMPLED, stop=("\n\n", "Q:"), n=1)


@pytest.mark.parametrize(
    ("choice", "text", "reason", "cut"),
    [
        ({"text": "Answer: 2\n\nQ: next\nAnswer: 3", "finish_reason": "length"}, "Answer: 2", "stop", True),
        ({"text": "Q: 1\n\n2", "finish_reason": "stop"}, "", "stop", True),
        ({"text": "Answer: 2", "finish_reason": "length"}, "Answer: 2", "length", False),
        ({"message": {"content": "2\n\nQ", "reasoning": "a\n\nb"}}, "<think>\na\n\nb</think>\n\n2", "stop", True),
        ({"message": {"reasoning": "a\n\nb"}, "finish_reason": "length"}, "<think>\na\n\nb", "length", False),
    ],
)
def test_a_response_that_went_on_behind_a_stop_text_ends_there(serve, choice, text, reason, cut):
    server, said = serve(lambda h, *_: h.reply({"choices": [choice], "usage": {"completion_tokens": 8}}) or True), []
    records, _ = respond(server, protocol=STOPPED, said=said)
    found = records["t/0"]
    assert (found["responses"], found["lengths"], found["finish_reasons"]) == ([text], [8], [reason])
    assert any("did not end 1 responses at --stop" in line for line in said) == cut


def test_vllm_looks_for_stop_texts_itself_and_not_in_the_first_token(serve):
    server = serve(lambda handler, body, _: handler.reply(answer(body, ["\n\n2"])) or True)
    records, _ = respond(server, protocol=STOPPED, is_vllm=True)
    assert records["t/0"]["responses"] == ["\n\n2"]


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
