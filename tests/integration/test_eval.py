"""The harness on the real stack: an engine is lost, the command is killed, repeated, and no question is asked twice."""

import json
import re
import shutil
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from commands import write_rows
from patience import seconds

N, FILE_QUESTIONS, AIME = 4, 360, 30  # so many that the kills come before the last answer
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_dir(tmp_path) -> Path:
    """A run with two exported checkpoints of a model that says little but "Answer: 1", 2 or 3, and questions for it."""
    from openrlhf_ebpo.quickstart import tiny_model

    questions = [f"{i:b}".translate(str.maketrans("01", "23")) for i in range(1, FILE_QUESTIONS + AIME + 1)]
    models = [tmp_path / "ckpt" / f"global_step{step}_hf" for step in (4, 8)]
    tiny_model.build(models[0], ["Answer: 123\n"], hidden_size=32, intermediate_size=64)
    shutil.copytree(models[0], models[1])
    write_rows(tmp_path / "train.jsonl", [{"prompt": f"{q}\n", "question": q} for q in questions])
    write_rows(tmp_path / "q.jsonl", [{"question": q, "answer": len(q) % 3 + 1} for q in questions[:FILE_QUESTIONS]])
    write_rows(
        tmp_path / "aime24.jsonl", [{"problem": q, "answer": "001", "url": "u"} for q in questions[FILE_QUESTIONS:]]
    )
    args = {"data": {"prompt_dataset": str(tmp_path / "train.jsonl"), "input_key": "prompt"}, "ckpt": {}}
    run = {"schema": 1, "status": "interrupted", "model": "base", "args": args}
    run["instruction"] = {"template": "{question}\n", "system": None}
    write_rows(tmp_path / "run" / "run.json", [run])
    rows = [{"step": 4 * i + 4, "checkpoint": None, "model": str(model)} for i, model in enumerate(models)]
    write_rows(tmp_path / "run" / "checkpoints.jsonl", rows)
    return tmp_path / "run"


@pytest.fixture
def start(start_command, run_dir, tmp_path):
    """Start `eval`."""

    def run(log: str, engines: int):
        argv = ["--checkpoints", run_dir, "--no_base", "--tasks", "file:q.jsonl,aime24=aime24.jsonl", "--n", N]
        argv += ["--max_new_tokens", 24, "--vllm.num_engines", engines]
        return start_command("openrlhf_ebpo.cli.eval", argv, tmp_path / log)

    return run


def lines(path: Path) -> list[dict]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def an_engine() -> list[psutil.Process]:
    """A rollout actor, and vLLM's core behind it, which would be left over; empty while neither runs."""
    processes = psutil.Process().children(recursive=True)  # the cluster is this process's
    try:
        return next(([each.parent(), each] for each in processes if "EngineCore" in each.name()), [])
    except psutil.NoSuchProcess:
        return []  # one that ended meanwhile


def test_every_question_is_asked_once_though_an_engine_dies_and_the_command_is_killed(start, run_dir, tmp_path):
    def wait_for(count: int, log: str) -> None:
        deadline = time.time() + seconds(240)
        while len(lines(progress)) < count:
            output = (tmp_path / log).read_text()
            assert process.poll() is None and time.time() < deadline, output[-6000:]
            time.sleep(0.005)

    results = run_dir / "eval" / f"default+n={N},max_new_tokens=24"
    progress = results / "file-q" / "step-000004" / "progress.jsonl"
    process = start("first.log", 2)
    while not (engine := an_engine()):  # before there are answers: on a busy machine all may come before it is found
        wait_for(0, "first.log")
    wait_for(10, "first.log")
    for each in engine:
        each.kill()
    assert process.wait(seconds(240)) == 1
    output, kept = (tmp_path / "first.log").read_text(), lines(progress)
    assert re.search(r"error: generation engine \d has died: .+\n\d+ of .* repeat the command to resume", output), (
        output[-6000:]
    )
    assert len(kept) >= 10 and not (progress.parent / "summary.json").exists()

    process = start("second.log", 1)
    wait_for(len(kept) + 10, "second.log")
    process.kill()
    process.wait()
    kept = lines(progress)

    process = start("third.log", 1)
    process.wait(seconds(240))
    output = (tmp_path / "third.log").read_text()
    assert process.returncode == 0, output[-6000:]
    already = int(
        re.search(rf"step 4: {FILE_QUESTIONS + AIME} questions in 2 tasks, (\d+) of them answered already", output)[1]
    )
    assert already >= len(kept) - 1 and not progress.exists()

    before = {line["id"]: line["responses"] for line in kept[1:]}
    for step in ("step-000004", "step-000008"):
        for task, questions in (("file-q", FILE_QUESTIONS), ("aime24", AIME)):
            check_result(results / task / step, questions, before if (step, task) == ("step-000004", "file-q") else {})
    report = (results / "report.md").read_text()
    assert "## Validation curve" in report and (results / "validation.png").stat().st_size > 5_000
    assert f"report     {results}/report.md" in output and output.count(f"maj@{N}") == 4


def check_result(directory: Path, questions: int, before: dict) -> None:
    """The summary says what the samples say, and those that were there before the kill are unchanged."""
    summary = json.loads((directory / "summary.json").read_text())
    rows = pq.read_table(directory / "samples.parquet").to_pylist()
    assert len(rows) == questions * N == len({(row["question_id"], row["sample"]) for row in rows})
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["question_id"], []).append(row["response"])
        if answer := re.search(r"^ *Answer: *([123]+)$(?!\s*\S)", row["response"], re.MULTILINE):
            assert row["correct"] == (answer[1] == row["gold"]) and row["extracted"] == answer[1]
        assert (row["class"] == -1) == (row["extracted"] is None) and 1 <= row["length"] <= 24
        assert row["finish_reason"] == "stop" or (row["finish_reason"], row["length"]) == ("length", 24)
    assert before == {key: found[key] for key in before}
    metrics = summary["metrics"]
    assert metrics["pass@1"]["value"] == pytest.approx(sum(row["correct"] for row in rows) / len(rows))
    assert metrics["no_answer"] == pytest.approx(sum(row["extracted"] is None for row in rows) / len(rows))
    assert metrics["truncated"] == pytest.approx(sum(row["finish_reason"] == "length" for row in rows) / len(rows))
    solved = sum(any(row["correct"] for row in rows if row["question_id"] == key) for key in found)
    assert metrics[f"pass@{N}"]["value"] == pytest.approx(solved / questions)
    if questions == FILE_QUESTIONS:  # of the 30 others a sampled tiny model may get none right
        assert 0 < metrics["pass@1"]["value"] < metrics[f"pass@{N}"]["value"] < 1
    assert summary["prompt"]["template"] == "{question}\n" and not summary["prompt"]["chat_template"]
    passes = [3] if before else [1, 2, 3] if directory.name == "step-000004" else [1]  # each with a seed of its own
    assert len(summary["seeds"]) in passes and summary["counts"] == {"excluded_golds": 0, "errors": 0}


@pytest.mark.nightly  # daily: unit/test_custom_benchmark.py, unit/test_eval_run.py
def test_a_benchmark_of_ones_own_runs_and_is_left_alone_when_finished(start_command, tmp_path):
    """The examples, from a working directory that knows nothing else of them; one brings its reward. With them, the
    settings of sampling that vLLM gets."""
    from openrlhf_ebpo.quickstart import tiny_model

    for file in (ROOT / "examples" / "benchmark").iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    tiny_model.build(tmp_path / "model", [(tmp_path / "measures.jsonl").read_text(), "Give the answer in ."])
    write_rows(tmp_path / "q.jsonl", [{"question": "How long?", "answer": 1}])

    def evaluate(log: str, tasks: str) -> str:
        argv = ["--model", "model", "--tasks", tasks, "--output_dir", "out", "--n", 2, "--max_new_tokens", 16]
        argv += ["--template", "raw", "--no-chat_template", "--stop", *"aeo", "--top_k", 40, "--min_p", 0.001]
        process = start_command("openrlhf_ebpo.cli.eval", argv, tmp_path / log)
        process.wait(seconds(240))
        return (tmp_path / log).read_text()

    first = evaluate("first.log", "measures:TASK")
    (directory,) = tmp_path.glob("out/*/measures/step-000000")
    summary = (directory / "summary.json").read_text()
    rows = pq.read_table(directory / "samples.parquet").to_pylist()
    assert len(rows) == 8 * 2 and json.loads(summary)["task"]["rows"] == 8, first[-6000:]
    assert rows[0]["question"] == "How long is a marathon? Give the answer in km."
    assert json.loads(rows[0]["rules"]) == {"unit": "km", "tolerance": 0.2}

    assert not any(set("aeo") & set(row["response"][1:]) for row in rows)  # vLLM does not look at the first token
    assert any(row["finish_reason"] == "stop" and row["length"] > len(row["response"]) for row in rows)
    kept = json.loads(summary)["protocol"]
    assert (kept["stop"], kept["top_k"], kept["min_p"]) == (list("aeo"), 40, 0.001)

    second = evaluate("second.log", "measures:TASK,file:q.jsonl,sentences:TASK")
    assert "5 questions in 2 tasks" in second, second[-6000:]
    assert (directory / "summary.json").read_text() == summary
    (own,) = tmp_path.glob("out/*reward=sentences.py*/sentences/step-000000")
    rows = pq.read_table(own / "samples.parquet").to_pylist()
    assert len(rows) == 4 * 2 and {row["error"] for row in rows} == {None} and '"with": "blue"' in rows[0]["gold"]
    assert not any(row["correct"] for row in rows) and rows[0]["prompt"] == rows[0]["question"]
    assert json.loads((own / "summary.json").read_text())["protocol"]["scorer"] == "sentences.py"
    report = (directory.parents[1] / "report.md").read_text()
    assert re.search(r"\| file-q \| .*\n\| measures \|", report)
