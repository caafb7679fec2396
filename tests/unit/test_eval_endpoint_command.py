"""Evaluation through a server, as a command: its address, its key, its list of models, its flags."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from model_server import CARD, CHAT, KEY, RAW, SAMPLED, VLLM, Good, arguments
from patience import seconds

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import endpoint, endpoint_questions, flags, generate, protocols, report, run
from openrlhf_ebpo.eval.endpoint import Endpoint, GaveUp, Refused
from openrlhf_ebpo.eval.jobs import Job
from openrlhf_ebpo.eval.models import Model
from openrlhf_ebpo.eval.prompts import PromptForm
from openrlhf_ebpo.eval.tasks import Question, Task
from openrlhf_ebpo.generation import engines
from openrlhf_ebpo.generation.engines import EngineSettings, GenerationError
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


def test_a_key_that_is_not_there_or_none_is_said_without_repeating_it(monkeypatch):
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
def test_a_server_that_is_none_is_refused_before_anything_is_asked(serve, reply, part):
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
NO_TEMPERATURE = {"omit_fields": ("temperature",)}


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
        (NO_TEMPERATURE, {"temperature": 0.5}, RAW, "--omit_fields: .*the protocol has --temperature"),
        (VLLM_HERE | NO_TEMPERATURE, {}, RAW, "--omit_fields: .*the protocol has --temperature"),
        ({"omit_fields": ("temperature", "seed")}, {}, RAW, None),
        ({"max_model_len": 8}, {}, RAW, "--max_new_tokens 8: m on this server reads 8 tokens"),
    ],
)
def test_what_a_server_cannot_do_is_refused(server, changes, form, part):
    expected = pytest.raises(UsageError, match=part) if part else contextlib.nullcontext()
    with expected:
        endpoint.check(Endpoint("http://h", "m", **server), protocols.override(SAMPLED, **changes), form)


# the command


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


def test_report_hub_and_space_take_such_results(serve, tmp_path):
    server = serve()
    run.main(arguments(tmp_path, server))
    model = f"openai:{server.url}#m"
    page = Path(report.write_report([tmp_path / "out"])).read_text()
    assert model in page
    rows = hub_evaluations.rows_of(results.find_results(tmp_path / "out"))
    assert {row["model"] for row in rows} == {model} and rows[0]["model_identity"].startswith("openai:127.0.0.1")
    (shown,), problems = space_results.find(Run("served", tmp_path / "out", 0))
    assert shown.task == "file-q" and not problems


def test_neither_torch_nor_vllm_nor_ray_is_loaded_on_this_side(serve, tmp_path):
    code = "import sys\nfrom openrlhf_ebpo.eval import run\nrun.main(sys.argv[1:])\nprint(*sys.modules)"
    argv = [sys.executable, "-c", code, *arguments(tmp_path, serve())]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "vllm", "ray", "openrlhf", "transformers"} & set(done.stdout.split())


def test_the_flags_defaults_are_those_of_the_endpoint_and_the_engines():
    args = parsed(["--model", "openai:http://h/v1#m"])
    assert all(getattr(args, name) == getattr(Endpoint, name) for name in endpoint.FLAGS)
    assert EngineSettings("m", 1, **engines.flag_values(args)) == EngineSettings("m", 1)


# questions that are always refused


def refusing(*refused: str, status: int = 400):
    def behave(handler, body, _):
        if body["prompt"] in refused:
            handler.reply({"error": {"message": "content\x1b[1m policy"}}, status)
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
    error = error_of(two_tasks(tmp_path, server))
    assert "1 questions got no responses, such as file-q/" in error and "7 of 8 questions are in" in error
    assert (
        "what was refused: --leave_out_refused gives results without up to half of a task" in error and "[1m" in error
    )
    (found,) = results.find_results(tmp_path / "out")
    (page,) = (tmp_path / "out").rglob("report.md")
    assert found.task == "file-p" and "| file-p |" in page.read_text()
    assert "\nfile-p  0     100.0" in capsys.readouterr().out
    asked = len(server.asked)
    server.misbehaviour.behave = None
    run.main(two_tasks(tmp_path, server))
    assert len(server.asked) == asked + 1
    assert sorted(each.task for each in results.find_results(tmp_path / "out")) == ["file-p", "file-q"]


def test_refused_questions_are_left_out_where_that_is_wanted_and_named(serve, tmp_path, capsys):
    server = serve(refusing("1+2?", "1+4?"))
    error_of(arguments(tmp_path, server))
    run.main(arguments(tmp_path, server, "--leave_out_refused"))
    assert "file-q, step 0: 2 questions were refused and are in no score" in capsys.readouterr().out
    (found,) = results.find_results(tmp_path / "out")
    task = found.summary["task"]
    assert len(found.samples.question_ids) == task["questions"] == 4 and found.summary["counts"]["refused"] == 2
    assert "2 of 6 questions were refused and are in no score" in task["notes"]
    first, _ = sorted(task["skipped"])
    assert "row 3 of " in first and "q.jsonl@" in first and "HTTP 400: content [1m policy" in first
    page = Path(report.write_report([tmp_path / "out"])).read_text()
    assert "2 of 6 questions were refused" in page and "| file-q | out | 4 | 1 |" in page and page.count("| 2 |\n") == 1
    asked = len(server.asked)
    run.main(arguments(tmp_path, server))
    assert len(server.asked) == asked and "2 questions were refused" in capsys.readouterr().out

    other = arguments(tmp_path, serve())
    other[other.index("--output_dir") + 1] = str(tmp_path / "other")
    run.main(other)
    with pytest.raises(UsageError, match=r"file-q stands for different questions in .*questions 4 and 6"):
        report.write_report([tmp_path / "out", tmp_path / "other"], tmp_path / "both")


def test_trouble_is_not_left_out(serve, tmp_path):
    server = serve(refusing("1+2?", status=503))
    error = error_of(arguments(tmp_path, server, "--leave_out_refused", "--retries", "0"))
    assert "policy" in error and "were refused" not in error and not list((tmp_path / "out").rglob("summary.json"))


def test_most_of_a_task_is_not_left_out(serve, tmp_path):
    server = serve(refusing(*(f"1+{i}?" for i in range(4))))
    error = error_of(arguments(tmp_path, server, "--leave_out_refused"))
    assert (
        "4 questions got no responses" in error
        and "more than half of file-q were refused: they are not left out" in error
    )
    assert not list((tmp_path / "out").rglob("summary.json"))


def test_refusals_that_are_left_out_do_not_end_the_command(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint_questions, "MAX_FAILED_IN_A_ROW", 2)
    server = serve(refusing("1+2?", "1+3?", "1+4?"))
    argv = arguments(tmp_path, server, "--concurrency", "1")
    assert "2 questions in a row got no responses" in error_of(argv)
    run.main([*argv, "--leave_out_refused"])
    (found,) = results.find_results(tmp_path / "out")
    assert found.summary["counts"]["refused"] == 3


def test_a_refused_question_of_an_engine_here_is_left_out_just_so(tmp_path):
    questions = tuple(Question(str(i), f"{i}?", "1") for i in range(3))
    task = Task("t", questions, "q.jsonl@1", row_of={"1": 7})
    job = Job(task, 1, Model("m", 0), tmp_path, {}, records={"0": {}, "2": {}})
    with pytest.raises(GenerationError, match=r"such as t/1: too long; what was refused: --leave_out_refused"):
        generate.settle([job], {"t/1": Refused("too long")}, False)
    assert job.missing == [questions[1]]
    with pytest.raises(GenerationError, match=r"such as t/1: later$"):
        generate.settle([job], {"t/1": GaveUp("later")}, True)
    generate.settle([job], {"t/1": Refused("too long")}, True)
    assert not job.missing and job.answered_task.questions == (questions[0], questions[2])
    assert job.answered_task.skipped == ("row 7 of q.jsonl@1 is left out, question 1: too long",)
    assert job.answered_task.fingerprint() != task.fingerprint()


# what is out of the ordinary outlives the command


def test_notes_on_the_responses_are_with_the_result_also_those_of_an_earlier_command(serve, tmp_path):
    def behave(handler, body, _):
        content = {"choices": [{"text": "Answer: 2", "finish_reason": "content_filter"}]}
        early = body["prompt"] in ("1+0?", "1+1?", "1+2?")
        handler.reply({"error": "no"}, 400) if early == later else handler.reply(content)
        return True

    later, server = False, serve(behave)
    error_of(arguments(tmp_path, server))
    later = True
    run.main(arguments(tmp_path, server))
    (found,) = results.find_results(tmp_path / "out")
    notes = found.summary["task"]["notes"]
    assert any("withheld 6 responses" in note for note in notes) and any(
        "tokens of 6 responses" in note for note in notes
    )
    page = Path(report.write_report([tmp_path / "out"])).read_text()
    assert "withheld 6 responses (content_filter)" in page


def test_records_without_facts_and_with_those_of_before_are_read():
    assert not endpoint_questions.notes([{"responses": []}, {}], SAMPLED)
    (note,) = endpoint_questions.notes(
        [{}, {"facts": {"withheld": 1}}, {"facts": {"withheld": 2, "no_seed": 1}}], SAMPLED
    )
    assert "withheld 3 responses" in note
