"""Bookkeeping of `eval.run`: which models and questions, what is kept, what is refused. No engine starts here."""

import argparse
import json
import logging
import resource
import shutil
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import refused, write_rows
from evaluated import record, write_model
from safetensors.numpy import save_file

from openrlhf_ebpo.engines.cluster import ClusterError
from openrlhf_ebpo.engines.engines import EngineSettings
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import generate, jobs, models, prompts, run, score
from openrlhf_ebpo.eval.eval_settings import EvalSettings
from openrlhf_ebpo.eval.grader import Grader
from openrlhf_ebpo.eval.models import Model
from openrlhf_ebpo.eval.prompts import PromptForm
from openrlhf_ebpo.run import results
from openrlhf_ebpo.run.run_log import RunDirectoryError
from openrlhf_ebpo.upstream.engine_errors import EngineError
from openrlhf_ebpo.upstream.rendering import Prompt

QUESTIONS = [("One and one?", "2"), ("Half of one?", r"\frac{1}{2}"), ("Two roots of x^2 = 1?", ["-1", "1"])]
RESPONSES = {
    "One and one?": [r"\boxed{2}", "Answer: 2.0", "no idea", r"\boxed{3}"],
    "Half of one?": ["Answer: 0.5", r"\boxed{1/2}", "Answer: 2", "Answer: 1/3"],
    "Two roots of x^2 = 1?": [r"\boxed{1, -1}", r"\boxed{1}", "", r"\boxed{1}"],
}
FORM = PromptForm("{question}", source="--template raw")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A model that is good enough to be looked at, and questions."""
    write_model(tmp_path / "model")
    write_rows(tmp_path / "q.jsonl", [{"question": q, "answer": a} for q, a in QUESTIONS])
    return tmp_path


@pytest.fixture(scope="module")
def grader():
    with Grader(workers=1) as grader:
        yield grader


@pytest.fixture(autouse=True)
def one_grader(monkeypatch, grader):
    """All commands here share one grading process: each takes more than a second to start."""
    monkeypatch.setattr(run, "Grader", lambda: nullcontext(grader))


def arguments(folder: Path, *more: str, **changes: str | None) -> list[str]:
    flags = {"model": folder / "model", "tasks": f"file:{folder}/q.jsonl", "output_dir": folder / "out", "n": 4}
    flags |= {"template": "raw", **changes}
    flags = {name: value for name, value in flags.items() if value is not None}
    return [text for name, value in flags.items() for text in (f"--{name}", str(value))] + ["--no-chat_template", *more]


def parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run.add_flags(parser)
    return parser.parse_args(argv)


def interrupted(argv: list[str], capsys) -> str:
    with pytest.raises(SystemExit, match="130"):
        run.main(argv)
    return capsys.readouterr().err


@pytest.fixture
def answered(monkeypatch):
    """In place of vLLM: the responses above, until `stop` many questions are answered; then raises `error`."""
    asked: list[str] = []

    def respond(stop: int = 99, error: BaseException | None = None):
        def respond_to(todo, path, form, protocol, flags):
            for job in todo:
                for question in job.missing:
                    if len(asked) == stop:
                        raise error
                    asked.append(question.question)
                    job.add(question.id, record(RESPONSES[question.question]))

        monkeypatch.setattr(generate, "respond", respond_to)
        return asked

    return respond


# mistakes in the command


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model": None}, ["--model", "--checkpoints"]),
        ({"checkpoints": "x"}, ["give --model", "or --checkpoints"]),
        ({"output_dir": None}, ["--output_dir is missing"]),
        ({"n": 0}, ["--n 0"]),
        ({"limit": 0}, ["--limit 0"]),
        ({"vllm.num_engines": 0, "vllm.gpu_memory_utilization": 1.5}, ["--vllm.num_engines 0", "utilization 1.5"]),
        ({"protocol": "greedy"}, ["--temperature 0 --n 4"]),
        ({"template": "no place for it"}, ["--template", "{question}"]),
        ({"tasks": "aime2024"}, ["Did you mean aime24?", "olympiadbench", "file:PATH"]),
        ({"tasks": ","}, ["names no task"]),
        ({"model": "/nowhere/model"}, ["--model /nowhere/model", "no such folder"]),
        ({"model": None, "checkpoints": "x", "step": 3, "run_dir": "y"}, ["--step goes with", "--run_dir goes with"]),
        ({"tasks": "aime24", "answer_column": "gold"}, ["--answer_column needs a file: task"]),
    ],
)
def test_a_mistake_in_a_flag_is_named(folder, changes, parts):
    error = refused(run.main, *arguments(folder, **changes))
    assert all(part in error for part in parts), error


def test_an_unknown_protocol_is_refused_with_the_known_ones(folder, capsys):
    with pytest.raises(SystemExit, match="2"):
        run.main(list(map(str, arguments(folder, protocol="gredy"))))
    assert "--protocol: invalid choice: 'gredy' (choose from 'default', 'greedy')" in capsys.readouterr().err
    assert not (folder / "out").exists()


@pytest.mark.parametrize(("specs", "part"), [("foo", "--tasks foo: no such task"), ("aime24=", "belongs behind the =")])
def test_the_hub_is_not_asked_for_a_model_whose_tasks_do_not_exist(folder, monkeypatch, specs, part):
    monkeypatch.setattr(models, "check_loadable", lambda *_: pytest.fail("the Hub was asked"))
    assert part in refused(run.main, *arguments(folder, model="owner/model", tasks=specs))


def test_a_file_of_which_no_gold_answer_can_be_read_is_refused(folder):
    write_rows(folder / "q.jsonl", [{"question": "Why?", "answer": "}"}, {"question": "How?", "answer": "\\"}])
    assert "row 1" in refused(run.main, *arguments(folder, protocol="default"))
    assert not (folder / "out").exists()


def test_two_tasks_of_one_name_are_refused(folder):
    write_rows(folder / "other" / "q.jsonl", [{"question": "Why?", "answer": 1}])
    assert "one name, file-q" in refused(
        run.main, *arguments(folder, tasks=f"file:{folder}/q.jsonl,file:{folder}/other/q.jsonl")
    )


def test_a_model_that_does_not_load_is_found_before_anything_starts(folder):
    unknown = write_model(folder / "unknown", "WhatForCausalLM", "what")
    assert "cannot be loaded" in refused(run.main, *arguments(folder, model=unknown))
    weights = folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert f"--model {folder / 'model'}: model.safetensors is " in refused(run.main, *arguments(folder))
    assert not (folder / "out").exists()


def test_a_model_of_the_hub_is_known_by_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert models.identity("org/base")["model"] == "org/base"
    cached = tmp_path / "models--org--base"
    for name in ("snapshots", "refs"):
        (cached / name).mkdir(parents=True)
    write_rows(cached / "snapshots" / "0123456789abcdef" / "config.json", [{}])
    (cached / "refs" / "main").write_text("0123456789abcdef")
    assert models.identity("org/base")["model"] == "org/base@0123456789ab"


def test_the_prompt_of_an_unknown_training_has_to_be_said(folder):
    error = refused(run.main, *arguments(folder, protocol="default", template=None))
    assert "--run_dir" in error and "--template" in error


# questions


def test_a_quick_look_and_changed_settings_are_seen_in_the_names(folder, answered, capsys):
    asked = answered()
    run.main(arguments(folder, limit=2, temperature=0.5, seed=7))
    assert asked == [q for q, _ in QUESTIONS[:2]]
    name = "default+n=4,temperature=0.5,template=raw,chat_template=False,seed=7"
    output = capsys.readouterr().out
    assert f"protocol {name}, version 1" in output and "temperature             0.5" in output
    (found,) = results.find_results(folder / "out")
    assert found.task == "file-q-first2" and found.path == folder / "out" / name / "file-q-first2" / "step-000000"


# results


def test_the_result_says_what_the_responses_are_and_which_rows_are_left_out(folder, answered, caplog, capsys):
    rows = [{"question": q, "answer": a} for q, a in QUESTIONS]
    write_rows(folder / "q.jsonl", [rows[0], {"question": "Bad?", "answer": "}"}, {"question": "None?"}, *rows[1:]])
    answered()
    with caplog.at_level(logging.WARNING):
        run.main(arguments(folder, protocol="default", step=30))
    left_out = [message for message in caplog.messages if "left out" in message]
    assert len(left_out) == 2 and "row 3" in left_out[0] and "row 2" in left_out[1] and "'}'" in left_out[1]
    (found,) = results.find_results(folder / "out")
    assert found.step == 30 and found.summary["model"] == str(folder / "model")
    assert found.summary["counts"] == {"excluded_golds": 2, "errors": 0} and found.summary["task"]["rows"] == 5
    rows = pq.read_table(found.path / "samples.parquet").to_pylist()
    assert [(row["question"], row["response"]) for row in rows] == [
        (question, response) for question, _ in QUESTIONS for response in RESPONSES[question]
    ]
    assert [row["correct"] for row in rows] == [1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0]
    assert [row["extracted"] for row in rows[:4]] == ["2", "2.0", None, "3"]
    assert [score.read_pair(row).rules.is_multiple_answer for row in rows] == [False] * 8 + [True] * 4
    assert rows[0]["class"] == rows[1]["class"] != rows[3]["class"] and rows[2]["class"] == -1
    assert rows[9]["class"] == rows[11]["class"] and {row["seed"] for row in rows} == {42}
    metrics = found.summary["metrics"]
    assert metrics["pass@1"]["value"] == pytest.approx(5 / 12) and metrics["pass@4"]["value"] == 1
    assert metrics["truncated"] == pytest.approx(1 / 12) and metrics["no_answer"] == pytest.approx(2 / 12)
    output = capsys.readouterr().out
    assert "3 questions, 2 left out" in output and "note: " not in output
    assert "41.7 ±" in output and "maj@4" in output and "16.7" in output
    assert f"report     {found.path.parent.parent}/report.md" in output
    assert "| file-q |" in (found.path.parent.parent / "report.md").read_text()
    assert not (found.path / "progress.jsonl").exists()


def test_a_finished_result_is_left_alone_and_not_taken_for_another_models(folder, answered, capsys):
    asked = answered()
    run.main(arguments(folder))
    (found,) = results.find_results(folder / "out")
    before = (found.path / "summary.json").stat().st_mtime_ns
    run.main(arguments(folder))
    assert len(asked) == 3 and (found.path / "summary.json").stat().st_mtime_ns == before
    assert "finished already" in capsys.readouterr().out
    save_file({"weight": np.ones(2)}, folder / "model" / "model.safetensors")
    error = refused(run.main, *arguments(folder))
    assert "model: 'model@" in error and "--force" in error and len(asked) == 3
    answered(4, KeyboardInterrupt())
    assert "1 of 3 questions" in interrupted(arguments(folder, "--force"), capsys)
    (old,) = (folder / "out" / "superseded").rglob("summary.json")
    assert old.stat().st_mtime_ns == before and not found.path.joinpath("summary.json").exists()


# progress


def test_what_is_done_is_kept_and_not_asked_again(folder, answered, capsys):
    asked = answered(1, KeyboardInterrupt())
    assert "interrupted; 1 of 3 questions" in interrupted(arguments(folder), capsys)
    for error in (EngineError("generation engine 0 has died"), ClusterError("2 GPUs are needed")):
        answered(2, error)
        assert refused(run.main, *arguments(folder)).startswith(f"error: {error}\n2 of 3 questions")
    answered()
    run.main(arguments(folder))
    assert asked == [q for q, _ in QUESTIONS]


def test_complete_tasks_get_their_result_though_another_lacks_a_response(folder, answered, capsys):
    write_rows(folder / "p.jsonl", [{"question": q, "answer": a} for q, a in QUESTIONS[:1]])
    argv = arguments(folder, tasks=f"file:{folder}/p.jsonl,file:{folder}/q.jsonl")
    answered(3, EngineError("1 questions got no responses, such as file-q/2"))
    assert "1 questions got no responses, such as file-q/2\n3 of 4 questions are in" in refused(run.main, *argv)
    (found,) = results.find_results(folder / "out")
    (page,) = (folder / "out").rglob("report.md")
    assert found.task == "file-p" and "| file-p |" in page.read_text() and "\nfile-p  0" in capsys.readouterr().out
    asked = answered()
    run.main(argv)
    assert len(asked) == 4 and len(results.find_results(folder / "out")) == 2


def test_arguments_of_the_chat_template_continue_a_begun_result(folder, answered, capsys):
    argv = arguments(folder, "--chat_template", "--template_kwargs", "effort=[1]")
    answered(1, KeyboardInterrupt())
    interrupted(argv, capsys)
    asked = answered()
    for _ in range(2):
        run.main(argv)
    assert len(asked) == 3 and "finished already" in capsys.readouterr().out


def test_the_flags_defaults_are_those_of_the_engines(folder):
    args = parsed(arguments(folder))
    assert EngineSettings.from_args(args, "m") == EngineSettings("m")


def test_other_settings_do_not_continue_a_begun_result(folder, answered, capsys):
    answered(1, KeyboardInterrupt())
    interrupted(arguments(folder), capsys)
    write_rows(folder / "q.jsonl", [{"question": q, "answer": a} for q, a in reversed(QUESTIONS)])
    error = refused(run.main, *arguments(folder))
    assert "task: 'file-q@" in error and "--force" in error


@contextmanager
def file_limit(size: int):
    """The kernel refuses to let a file grow beyond a size, as a full disk does. Over before the test ends, for it holds
    for pytest's own output too."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_full_disk_is_said_and_the_command_goes_on_later(folder, answered, monkeypatch):
    asked = answered()
    respond = generate.respond

    def on_a_small_disk(todo, *rest):
        with file_limit((todo[0].directory / "progress.jsonl").stat().st_size + 250):  # room for one question
            respond(todo, *rest)

    monkeypatch.setattr(generate, "respond", on_a_small_disk)
    error = refused(run.main, *arguments(folder))
    assert "cannot be written: File too large" in error and "1 of 3 questions are in" in error
    asked.clear()
    monkeypatch.setattr(generate, "respond", respond)
    run.main(arguments(folder))
    assert asked == [q for q, _ in QUESTIONS[1:]]


# models of a run


@pytest.fixture
def run_dir(tmp_path) -> Path:
    """A run with checkpoints 2 (exported), 4 (not), 6 (gone), 8 (exported twice)."""
    paths = {tag: write_model(tmp_path / "ckpt" / tag) for tag in ("2", "8", "best_8")}
    rows = [(2, paths["2"]), (4, None), (6, str(tmp_path / "gone")), (8, paths["8"]), (8, paths["best_8"])]
    write_rows(tmp_path / "run" / "checkpoints.jsonl", [{"step": step, "model": path} for step, path in rows])
    write_rows(tmp_path / "run" / "metrics.jsonl", [{"step": step, "time": 0.0} for step in range(1, 11)])
    write_run(tmp_path / "run", "running", write_model(tmp_path / "final"))
    return tmp_path / "run"


def write_run(run_dir: Path, status: str, output_dir: str) -> None:
    args = {"ckpt": {"output_dir": output_dir}}
    write_rows(run_dir / "run.json", [{"schema": 1, "status": status, "model": "org/base", "args": args}])


def test_the_exported_checkpoints_of_a_run_by_step(run_dir, caplog):
    with caplog.at_level(logging.WARNING):
        found = models.of_run(run_dir)
    assert [(model.step, Path(model.path).name) for model in found] == [(0, "base"), (2, "2"), (8, "best_8")]
    assert "step 4" in caplog.text and "--ckpt.save_hf" in caplog.text
    assert "step 6" in caplog.text and "no longer exists" in caplog.text
    assert [model.step for model in models.of_run(run_dir, base=False)] == [2, 8]


def test_the_model_at_the_end_of_a_complete_run_is_one_of_its_steps(run_dir, tmp_path):
    write_run(run_dir, "complete", str(tmp_path / "final"))
    assert [model.step for model in models.of_run(run_dir)] == [0, 2, 8, 10]
    assert models.of_run(run_dir)[-1].path == str(tmp_path / "final")


def test_a_copied_run_has_its_own_final_model(run_dir, tmp_path):
    args = {"ckpt": {"output_dir": str(tmp_path / "final")}, "logger": {"run_dir": str(run_dir)}}
    write_rows(run_dir / "run.json", [{"schema": 1, "status": "complete", "model": "org/base", "args": args}])
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert models.of_run(tmp_path / "copy" / "run")[-1].path == str(tmp_path / "copy" / "final")


def test_a_run_without_exported_models_says_what_training_needs(run_dir):
    write_rows(run_dir / "checkpoints.jsonl", [{"step": 2, "model": None}])
    with pytest.raises(UsageError, match=r"--ckpt\.save_hf"):
        models.of_run(run_dir)
    with pytest.raises(RunDirectoryError, match=r"no run\.json"):
        models.of_run(run_dir / "eval")


def test_all_steps_of_a_run_in_one_go_and_only_the_new_ones_again(run_dir, folder, answered, capsys):
    asked = answered()
    argv = arguments(folder, "--no_base", model=None, output_dir=None, checkpoints=run_dir)
    run.main(argv)
    assert len(asked) == 6 and {each.step for each in results.find_results(run_dir)} == {2, 8}
    report = next((run_dir / "eval").glob("*/report.md"))
    assert "## Validation curve" in report.read_text() and str(report) in capsys.readouterr().out
    rows = (run_dir / "checkpoints.jsonl").read_text()
    new = write_model(run_dir.parent / "ckpt" / "9")
    (run_dir / "checkpoints.jsonl").write_text(rows + json.dumps({"step": 9, "model": new}) + "\n")
    run.main(argv)
    assert len(asked) == 9 and {each.step for each in results.find_results(run_dir)} == {2, 8, 9}
    run.main([*argv, "--force"])
    assert len(asked) == 18 and len([*(run_dir / "eval" / "superseded").rglob("summary.json")]) == 3


# LoRA


def test_lora_adapters_are_merged_into_their_base(tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from openrlhf_ebpo.quickstart import tiny_model

    base, adapter = tmp_path / "base", tmp_path / "adapter"
    tiny_model.build(base, ["abc"], hidden_size=16, intermediate_size=32)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    lora = get_peft_model(model, LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj"], init_lora_weights=False))
    lora.save_pretrained(adapter)
    assert models.is_adapter(str(adapter)) and not models.is_adapter(str(base))
    models.check_loadable(str(adapter))
    tokens = torch.tensor([[1, 2, 3]])
    with models.full_model(str(adapter), tmp_path / "scratch") as path:
        merged = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        assert (Path(path) / "tokenizer.json").exists()
        with torch.no_grad():
            expected, found = lora(tokens).logits, merged(tokens).logits
            plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)(tokens).logits
    assert (found - expected).abs().max() < 0.02 * (expected - plain).abs().max() and not Path(path).exists()
    identity = models.identity(str(adapter))
    assert identity["model"].startswith("base@") and "+adapter@" in identity["model"]
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert models.identity(str(adapter))["model"] != identity["model"]


def test_a_full_model_is_used_where_it_is(folder):
    with models.full_model(str(folder / "model"), folder / "scratch") as path:
        assert path == str(folder / "model") and not (folder / "scratch").exists()


def test_one_question_in_two_tasks_is_asked_in_both(folder, monkeypatch):
    write_rows(folder / "copy.jsonl", [{"question": QUESTIONS[0][0], "answer": 2}])
    args = parsed(arguments(folder, tasks=f"file:{folder}/q.jsonl,file:{folder}/copy.jsonl"))
    settings = EvalSettings.from_args(args)
    planned = jobs.plan(Model(str(folder / "model")), run.load_tasks(settings), settings.protocol, FORM, folder / "out")
    monkeypatch.setattr(
        prompts, "render_questions", lambda questions, *_: [Prompt(q.id, q.question) for q in questions]
    )
    asked = {key: job for job in planned for key, (job, _) in generate._prompts(job, FORM, "m").items()}
    assert len(asked) == 4 and [job.task.name for job in asked.values()] == ["file-q"] * 3 + ["file-copy"]


# command line


def test_a_score_that_only_shows_the_form_of_the_answers_is_said_to_be_so(folder, answered, capsys, monkeypatch):
    monkeypatch.setitem(RESPONSES, "Two roots of x^2 = 1?", ["one", "two", "", "none"])
    answered()
    write_rows(folder / "silent.jsonl", [{"question": "Two roots of x^2 = 1?", "answer": "1"}])
    run.main(arguments(folder, tasks=f"file:{folder}/silent.jsonl"))
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert "note: file-silent: " in notes[-1]
