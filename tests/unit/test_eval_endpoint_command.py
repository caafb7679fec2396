"""Evaluation through a server, as a command: its address, its key, its list of models, its flags."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from commands import refused
from model_server import CARD, CHAT, KEY, RAW, SAMPLED, VLLM, Good, arguments
from patience import seconds

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import endpoint, endpoint_questions, flags, protocols, report, run
from openrlhf_ebpo.eval.endpoint import Endpoint
from openrlhf_ebpo.eval.prompts import PromptForm
from openrlhf_ebpo.generation import engines
from openrlhf_ebpo.generation.engines import EngineSettings
from openrlhf_ebpo.hub import evaluations as hub_evaluations
from openrlhf_ebpo.run import results
from openrlhf_ebpo.space import results as space_results
from openrlhf_ebpo.space.runs import Run

# the address, the key, the list of models


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("openai:", "not the address of a server"),
        ("openai:gpt-5", "not the address of a server"),
        ("openai:ftp://h/v1#m", "not the address of a server"),
        ("openai:http://h/v1", "which of the server's models?"),
        ("openai:http://h/v1#", "which of the server's models?"),
        ("openai:http://h/v1#a\nb", "which of the server's models?"),
        ("openai:http://h:99999/v1#m", "not the address of a server"),
        ("openai:http://[::1/v1#m", "not the address of a server"),
        ("openai:http://h/v 1#m", "not the address of a server"),
        ("openai:https://me:hunter2@h/v1#m", "no name, password or query"),
        ("openai:me:hunter2@h/v1#m", "no name, password or query"),
        ("openai:http:/me:hunter2@h/v1#m", "no name, password or query"),
        ("openai:https://h/v1?key=hunter2#m", "no name, password or query"),
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


def test_a_missing_or_empty_api_key_is_refused(monkeypatch):
    monkeypatch.delenv(KEY.replace("-", "_"), raising=False)
    with pytest.raises(UsageError) as stopped:
        endpoint.key_of(KEY.replace("-", "_"), "https://h/v1", print)
    assert "0123456789" not in str(stopped.value)
    monkeypatch.setenv("OPENAI_API_KEY", "two words")
    with pytest.raises(UsageError, match="no server takes as a key"):
        endpoint.key_of(None, "https://h/v1", print)


def connected(server, name: str = "m", *more: str) -> tuple[Endpoint, list[str]]:
    said: list[str] = []
    return endpoint.connect(parsed(["--model", f"openai:{server.url}#{name}", *more]), said.append), said


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
    assert "does not list 'Qwen/Qwen3-8'; its models: Qwen/Qwen3-8B [1m, 3" in said[0] and not found.root


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
        (
            lambda handler: handler.reply(b"<html>hello</html>", Content_Type="text/html"),
            "no list of models: <html>hello",
        ),
        (lambda handler: handler.reply(b"<html>hello</html>"), "the address right?"),
        (lambda handler: handler.reply({"error": {"message": "no\x1b[1m"}}, 400), "HTTP 400: no [1m: is the server up"),
        (
            lambda handler: handler.reply({}, 503, Retry_After="0.01"),
            "HTTP 503: (nothing): is the server still starting",
        ),
        (lambda handler: handler.reply("a list"), "no list of models: a list"),
    ],
)
def test_an_address_without_a_server_is_refused(serve, reply, part):
    behave = Good()
    behave.list = reply
    with pytest.raises(UsageError) as stopped:
        connected(serve(behave))
    assert part in str(stopped.value)


def test_a_list_that_is_not_there_yet_is_asked_for_again(serve):
    behave, asked = Good(cards=[VLLM]), []

    def list_(handler):
        asked.append(1)
        Good.list(behave, handler) if len(asked) > 2 else handler.reply({}, 503, Retry_After="0.01")

    behave.list = list_
    found, said = connected(serve(behave))
    assert found.is_vllm and len(asked) == 3 and not said


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


VLLM_HERE = {"is_vllm": True}


@pytest.mark.parametrize(
    ("server", "changes", "form", "part"),
    [
        ({}, {"top_k": 5, "min_p": 0.1}, RAW, "--top_k, --min_p: the API has no such setting"),
        (VLLM_HERE, {"top_k": 5, "min_p": 0.1}, RAW, None),
        ({}, {"template_kwargs": (("a", "1"),)}, CHAT, "--template_kwargs: "),
        (VLLM_HERE, {"template_kwargs": (("a", "1"),)}, CHAT, None),
        ({}, {}, PromptForm("{question}", bos=True), "--add_bos: "),
        (VLLM_HERE, {}, PromptForm("{question}", bos=True), None),
        (VLLM_HERE, {}, replace(CHAT, bos=True), "the server's chat template decides on the begin token"),
        ({"max_model_len": 8}, {}, RAW, "--max_new_tokens 8: m on this server reads 8 tokens"),
    ],
)
def test_what_a_server_cannot_do_is_refused(server, changes, form, part):
    expected = pytest.raises(UsageError, match=part) if part else contextlib.nullcontext()
    with expected:
        endpoint.check(Endpoint("http://h", "m", **server), protocols.override(SAMPLED, **changes), form)


# the command


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
    error = refused(run.main, *arguments(tmp_path, serve(), *more))
    assert all(part in error for part in parts) and KEY not in error and not (tmp_path / "out").exists()


def test_flags_of_servers_do_not_go_with_other_models(tmp_path):
    error = refused(
        run.main, "--model", str(tmp_path), "--tasks", "aime24", "--output_dir", "out", "--concurrency", "3"
    )
    assert "--concurrency goes with --model openai:URL#NAME" in error


@pytest.fixture
def heed_interrupts():
    """A shell starts its background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heed_interrupts")
def test_ctrl_c_leaves_the_finished_questions_and_the_command_goes_on_with_the_others(serve, tmp_path, capsys):
    def interrupt(handler, body, number):
        if number == 4:
            end = time.monotonic() + seconds(30)
            while (
                sum(path.read_text().count("\n") for path in tmp_path.rglob("progress.jsonl")) < 4
            ):  # settings, 3 answers
                assert time.monotonic() < end
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            interrupted.wait(seconds(30))

    interrupted = threading.Event()
    server = serve(interrupt, cards=[VLLM])
    more = ("--concurrency", "1", "--max_new_tokens", "8")
    with pytest.raises(SystemExit, match="130"):
        run.main(arguments(tmp_path, server, *more))
    interrupted.set()
    assert "interrupted; 3 of 6 questions are in" in capsys.readouterr().err
    before = [body["prompt"] for _, body, _ in server.asked[:3]]
    server.asked.clear()
    server.misbehaviour.cards = [VLLM | {"root": "org/other"}]
    error = refused(run.main, *arguments(tmp_path, server, *more))
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
    assert "not this" in refused(run.main, *argv)
    refuse.clear()
    run.main(argv)
    assert len(server.asked) == 7
    run.main(argv)
    assert len(server.asked) == 7 and "finished already" in capsys.readouterr().out


def test_report_hub_and_space_take_such_results(serve, tmp_path, monkeypatch):
    monkeypatch.delattr(run, "is_cpu_stack")  # it asks torch, which need not be installed for this
    server = serve()
    run.main(arguments(tmp_path, server))
    model = f"openai:{server.url}#m"
    page = Path(report.write_report([tmp_path / "out"])).read_text()
    assert model in page
    rows = hub_evaluations.rows_of(results.find_results(tmp_path / "out"))
    assert {row["model"] for row in rows} == {model} and rows[0]["model_identity"].startswith("openai:127.0.0.1")
    (shown,), problems = space_results.find(Run("served", tmp_path / "out", 0))
    assert shown.task == "file-q" and not problems


def test_the_flags_defaults_are_those_of_the_endpoint_and_the_engines():
    args = parsed(["--model", "openai:http://h/v1#m"])
    assert all(getattr(args, name) == getattr(Endpoint, name) for name in endpoint.FLAGS)
    assert EngineSettings("m", 1, **engines.flag_values(args)) == EngineSettings("m", 1)


# a question that is refused


def refusing(refused: str):
    def behave(handler, body, _):
        if body["prompt"] == refused:
            handler.reply({"error": {"message": "content\x1b[1m policy"}}, 400)
            return True

    return behave


def two_tasks(folder: Path, server, *more: str) -> list[str]:
    """arguments(), and a second task of two questions."""
    rows = [{"question": f"2*{i}?", "answer": "4"} for i in range(2)]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = arguments(folder, server, *more)
    argv[argv.index("--tasks") + 1] += f",file:{folder}/p.jsonl"
    return argv


def test_tasks_that_are_whole_get_their_result_though_another_lacks_a_response(serve, tmp_path, capsys):
    server = serve(refusing("1+2?"))
    error = refused(run.main, *two_tasks(tmp_path, server))
    assert "1 questions got no responses, such as file-q/" in error and "7 of 8 questions are in" in error
    assert "HTTP 400: content [1m policy" in error
    (found,) = results.find_results(tmp_path / "out")
    (page,) = (tmp_path / "out").rglob("report.md")
    assert found.task == "file-p" and "| file-p |" in page.read_text()
    assert "\nfile-p  0     100.0" in capsys.readouterr().out
    asked = len(server.asked)
    server.misbehaviour.behave = None
    run.main(two_tasks(tmp_path, server))
    assert len(server.asked) == asked + 1
    assert sorted(each.task for each in results.find_results(tmp_path / "out")) == ["file-p", "file-q"]


# what is out of the ordinary outlives the command


def test_notes_on_the_responses_are_with_the_result_also_those_of_an_earlier_command(serve, tmp_path):
    def behave(handler, body, _):
        content = {"choices": [{"text": "Answer: 2", "finish_reason": "content_filter"}]}
        early = body["prompt"] in ("1+0?", "1+1?", "1+2?")
        handler.reply({"error": "no"}, 400) if early == later else handler.reply(content)
        return True

    later, server = False, serve(behave)
    refused(run.main, *arguments(tmp_path, server))
    later = True
    run.main(arguments(tmp_path, server))
    (found,) = results.find_results(tmp_path / "out")
    notes = found.summary["task"]["notes"]
    assert any("withheld 6 responses" in note for note in notes) and any(
        "tokens of 6 responses" in note for note in notes
    )
    page = Path(report.write_report([tmp_path / "out"])).read_text()
    assert "withheld 6 responses (content_filter)" in page


def test_progress_without_usage_counts_is_read():
    assert not endpoint_questions.notes([{"responses": []}, {}], SAMPLED)
    (note,) = endpoint_questions.notes(
        [{}, {"facts": {"withheld": 1}}, {"facts": {"withheld": 2, "no_seed": 1}}], SAMPLED
    )
    assert "withheld 3 responses" in note
