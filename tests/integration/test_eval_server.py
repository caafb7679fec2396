"""Evaluation through vLLM's own OpenAI-compatible server, compared with the engines that are started here."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from patience import seconds

pytestmark = pytest.mark.nightly  # daily: unit/test_eval_endpoint.py, unit/test_eval_endpoint_command.py

KEY = "token-abc-0123456789"
QUESTIONS, TOKENS = 24, 8
BEGIN = {"SpecialToken": {"id": "<|unk|>", "type_id": 0}}
TEMPLATE = "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ sign | default('=') }}"


@pytest.fixture
def model(tmp_path) -> Path:
    """A tiny model with all that a server could take from it unasked: sampling defaults, a token before every text, a chat
    template."""
    from openrlhf_ebpo.quickstart import tiny_model

    folder = tmp_path / "model"
    tiny_model.build(folder, ["Answer: 123\n", "[]=>"], hidden_size=32, intermediate_size=64, initializer_range=1.0)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    known = {"id": "<|unk|>", "ids": [tokenizer["model"]["vocab"]["<|unk|>"]], "tokens": ["<|unk|>"]}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [BEGIN, text],
        "pair": [BEGIN, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|unk|>": known},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    defaults = {"repetition_penalty": 1.7, "temperature": 0.3, "top_k": 2, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    questions = [f"{i:b}".translate(str.maketrans("01", "23")) for i in range(1, QUESTIONS + 1)]
    rows = ({"question": q, "answer": len(q) % 3 + 1} for q in questions)
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def server(model, tmp_path):
    """`vllm serve MODEL`, not yet ready: the process, its address and its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"served-model-name": "tiny", "host": "127.0.0.1", "port": port, "dtype": "bfloat16"}
    settings |= {"max-model-len": 64, "kv-cache-memory-bytes": 64 << 20}
    argv = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    environment = {
        **os.environ,
        **{"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"},
        "VLLM_API_KEY": KEY,
    }
    log = tmp_path / "server.log"
    with open(log, "w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--enforce-eager", *argv],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=tmp_path,
            start_new_session=True,
        )
    yield process, f"http://127.0.0.1:{port}", log
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def wait_until_ready(process, address: str, log: Path) -> None:
    deadline = time.time() + seconds(300)
    while time.time() < deadline:
        assert process.poll() is None, log.read_text()[-6000:]
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"no server after 300 s:\n{log.read_text()[-6000:]}")


def rows_of(out: Path) -> list[dict]:
    (path,) = out.glob("*/file-q/step-000000/samples.parquet")
    return pq.read_table(path).to_pylist()


def test_vllms_server_gives_what_the_engines_here_give_and_a_killed_command_goes_on(
    server, model, start_command, tmp_path, monkeypatch
):
    process, address, log = server
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    common = ["--tasks", "file:q.jsonl", "--max_new_tokens", TOKENS]
    greedy = [*common, "--protocol", "greedy"]
    as_chat = ["--template", "[{question}]=", "--no-chat_template"]
    served = ["--model", f"openai:{address}/v1#tiny"]

    def start(name: str, *argv):
        return start_command("openrlhf_ebpo.cli.eval", [*argv, "--output_dir", name], tmp_path / f"{name}.log")

    def finish(name: str, command) -> str:
        command.wait(240)
        output = (tmp_path / f"{name}.log").read_text()
        assert command.returncode == 0, output[-6000:] + log.read_text()[-3000:]
        return output

    here = start("here", *greedy, *as_chat, "--model", model)
    wait_until_ready(process, address, log)

    slow = start("there", *greedy, *as_chat, *served, "--concurrency", 1)
    deadline = time.time() + seconds(120)
    while len(kept := lines(tmp_path / "there")) < 6:
        assert slow.poll() is None and time.time() < deadline, (tmp_path / "there.log").read_text()[-6000:]
        time.sleep(0.02)
    slow.kill()
    slow.process.join(30)
    output = finish("there", start("there", *greedy, *as_chat, *served))
    already = int(re.findall(r"24 questions in 1 tasks, (\d+) of them answered already", output)[-1])
    assert len(kept) - 1 <= already < QUESTIONS
    before = {line["id"]: line["responses"] for line in kept[1:]}

    chat = start("chat", *greedy, "--template", "raw", "--chat_template", "--template_kwargs", 'sign="="', *served)
    finish("chat", chat)
    finish("here", here)
    names = ("question_id", "response", "length", "finish_reason", "correct", "extracted")
    found = {
        out: [{name: row[name] for name in names} for row in rows_of(tmp_path / out)]
        for out in ("here", "there", "chat")
    }
    assert found["there"] == found["here"] and found["chat"] == found["here"]
    assert len({row["response"] for row in found["here"]}) > 8
    assert all(
        before[row["question_id"]] == [row["response"]] for row in found["there"] if row["question_id"] in before
    )
    assert metrics(tmp_path / "there") == metrics(tmp_path / "here") == metrics(tmp_path / "chat")

    finish("drawn", start("drawn", *common, "--n", 4, *as_chat, *served))
    drawn = rows_of(tmp_path / "drawn")
    assert len(drawn) == 4 * QUESTIONS and len({(row["question_id"], row["response"]) for row in drawn}) > QUESTIONS
    assert all(
        (row["finish_reason"] == "length") == (row["length"] == TOKENS) or row["length"] == TOKENS for row in drawn
    )
    texts = "".join(path.read_text() for path in tmp_path.glob("*.log") if path != log)
    assert KEY not in texts


def metrics(out: Path) -> dict:
    (path,) = out.glob("*/file-q/step-000000/summary.json")
    return json.loads(path.read_text())["metrics"]


def lines(out: Path) -> list[dict]:
    """What a command under way has kept."""
    text = "".join(path.read_text() for path in out.glob("*/file-q/step-000000/progress.jsonl"))
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
