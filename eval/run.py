"""Measure a model, or all checkpoints of a training run, on tasks with answers that can be checked.

Every question gets --n responses from vLLM, all tasks in one pass, over as many GPUs of a Ray cluster as
--vllm.num_engines and --vllm.tensor_parallel_size say (a CPU does for tiny models). Responses are saved question by
question as they come.

examples:
  openrlhf-ebpo eval --model Qwen/Qwen3-8B --template dapo --chat_template \\
      --tasks aime24,aime25,amc23,math500,olympiadbench --n 32 --output_dir results/base --vllm.num_engines 8
  openrlhf-ebpo eval --checkpoints runs/ebpo/run --tasks aime25,amc23 --vllm.num_engines 8     a validation curve
  openrlhf-ebpo eval --model my/model --protocol greedy --template boxed --no-chat_template \\
      --tasks file:questions.jsonl --output_dir results/mine --limit 20                   a quick look

tasks, separated by commas
BENCHMARKS
                  these from the Hub, or from a file: NAME=FILE
  my_module:TASK  a custom benchmark, in my_module.py of this folder or of PYTHONPATH; it may name its reward
  file:PATH       questions and answers in any form of --data.prompt_dataset: .jsonl, .parquet, .csv, a folder

rewards grade responses: `math` compares answers with golds; FILE.py is a reward_func as in training, of which 1 or more
is right, and by whose "extracted", a text in what it returns, responses vote

protocols: all settings that decide what a score means, printed at the start
  default    32 responses per question at T = 1, top-p 1, 20,480 tokens, requested as the model was trained
  greedy     one response at T = 0
  A flag under "protocol" changes a setting, and the protocol's name says so: default+n=8.

output: DIR/<protocol>/<task>/step-000000/summary.json and samples.parquet (one row per response), and
DIR/<protocol>/report.md. Of --checkpoints, DIR is the run's eval/, and the model before training is step 0.

Killed or interrupted? Repeat the command: no question is generated twice, and what is finished is left alone. Another
model or task version under the same names is refused, unless --force starts over.

Then: openrlhf-ebpo eval report --help   models side by side
      openrlhf-ebpo eval score --help    score any file with gold answers and responses, no model needed
In a checkout, python -m eval.run, eval.report and eval.score are the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.engines.cluster import ClusterError
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.eval import evaluation_report, generate, jobs, models, prompts, protocols, reward_file, tasks
from openrlhf_ebpo.eval.eval_settings import EvalSettings, add_flags
from openrlhf_ebpo.eval.grader import NO_GOLD, Grader
from openrlhf_ebpo.eval.jobs import Job
from openrlhf_ebpo.eval.models import Model
from openrlhf_ebpo.eval.prompts import PromptForm
from openrlhf_ebpo.eval.tasks import MATH, Task
from openrlhf_ebpo.extension import trust_models
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
from openrlhf_ebpo.run.results import Result, find_results
from openrlhf_ebpo.run.score_text import majorities, percent, score
from openrlhf_ebpo.upstream.engine_errors import EngineError

MAX_NO_ANSWER = 0.95  # share of responses without an answer above which a score is about the form of the answers


def run(args: argparse.Namespace) -> None:
    """Evaluate what the flags ask for, and write results and report.

    Raises:
        UsageError: a mistake in the flags or in what they name; all are found before the first engine starts, but for
        the length that a model can read.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    trust_models(args.trust_remote_code)
    settings = EvalSettings.from_args(args)
    settings.check()
    tasks.check_specs(settings.tasks)  # before the Hub is asked for a model, with retries
    results, protocol = settings.results, settings.protocol
    if settings.checkpoints:
        chosen, flag = models.of_run(settings.checkpoints, not settings.no_base), "--checkpoints"
    else:
        chosen, flag = [Model(settings.model, settings.step)], "--model"
    for model in chosen:
        models.check_loadable(model.path, flag)
    run_dir = settings.checkpoints or settings.run_dir or prompts.run_of(settings.model)
    form = prompts.prompt_form(protocol.template, protocol.chat_template, run_dir)
    form = prompts.with_kwargs(form, protocol.template_kwargs, run_dir)
    requested = load_tasks(settings)
    planned = [jobs.plan(model, requested, protocol, form, results) for model in chosen]
    used = {job.protocol.name: job.protocol for job in planned[0]}
    print(*(each.describe() for each in used.values()), describe_start(requested, chosen, form), sep="\n", flush=True)
    with ExitStack() as stack:
        jobs.open_jobs(stack, [job for row in planned for job in row], results, settings.force)
        steps = {model.step for model in chosen}
        try:
            for row in planned:
                evaluate(row, form, settings)
        except ReportedError:
            if any(job.finished for row in planned for job in row):
                print_scores(settings, planned, steps)
            raise
    print_scores(settings, planned, steps)


def print_scores(settings: EvalSettings, planned: Sequence[Sequence[Job]], steps: set[int]) -> None:
    """Print the scores that there are, and write the report of each protocol."""
    names = {job.task.name for row in planned for job in row}
    for protocol in dict.fromkeys(job.protocol.name for row in planned for job in row if job.finished):
        everything = find_results(settings.results / protocol)
        found = [each for each in everything if each.task in names and each.step in steps]
        print(table(found), *notes(found), sep="\n")
        report = write_report(settings, protocol)
        print(f"\nreport     {report}\nresults    {settings.results / protocol}", flush=True)


def load_tasks(settings: EvalSettings) -> list[Task]:
    """Return the tasks of --tasks, cut to --limit questions, without those whose gold answer `math` cannot read.

    Raises:
        UsageError: one that cannot be loaded, or two of one name.
    """
    columns = settings.question_column, settings.answer_column
    loaded = [tasks.load_task(spec, *columns, settings.reward) for spec in tasks.split_specs(settings.tasks)]
    names = [task.name for task in loaded]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"--tasks {settings.tasks}: two tasks have one name, {', '.join(twice)}; rename one")
    if limit := settings.limit:  # renamed: it must not be taken for the task
        loaded = [
            dataclasses.replace(each, name=f"{each.name}-first{limit}", questions=each.questions[:limit])
            for each in loaded
        ]
    if any(task.reward == MATH for task in loaded):
        protocols.check_scorer(settings.protocol)
    with Grader() as grader:
        requested = [without_unreadable(task, grader) if task.reward == MATH else task for task in loaded]
    for task in requested:
        if task.reward != MATH:
            try_reward(task, settings.rewards)
    return requested


def without_unreadable(task: Task, grader: Grader) -> Task:
    """Return the task without the questions whose gold answers `math` cannot read.

    Raises:
        UsageError: nothing is left.
    """
    errors = list(grader.map(lambda question: grader.gold_error(question.gold, question.rules), task.questions))
    pairs = list(zip(task.questions, errors, strict=True))
    left_out = [
        f"row {task.row_of[q.id]} of {task.source} is left out: {error.removeprefix(NO_GOLD)}"
        for q, error in pairs
        if error
    ]
    for message in left_out:
        logging.warning("%s: %s", task.name, message)
    kept = tuple(question for question, error in pairs if not error)
    if not kept:
        raise UsageError(f"--tasks {task.source}: no gold answer can be read: {left_out[0]}")
    return dataclasses.replace(task, questions=kept, skipped=(*task.skipped, *left_out))


def try_reward(task: Task, rewards: RewardSettings) -> None:
    """Ask the task's reward file for one reward, and warn if it fails: better now than when all responses are there.

    Raises:
        UsageError: the file cannot be read or imported.
    """
    question, settings = task.questions[0], dataclasses.replace(rewards, sources=(task.reward,))
    identity = reward_file.reward_identity(task.reward, f"the reward of {task.name},")
    asked = reward_file.Asked(question.question, question.gold, question.gold)
    try:
        (found,) = reward_file.grade_all(settings, identity, [asked])
    except ReportedError as error:
        raise UsageError(f"the reward of {task.name}: {error}") from error
    if found["error"]:
        logging.warning(
            "%s: its reward fails, tried with the response %.60r: %s", task.name, question.gold, found["error"]
        )


def describe_start(requested: Sequence[Task], chosen: Sequence[Model], form: PromptForm) -> str:
    lines = [f"prompt: {form.template!r}, chat template {'on' if form.chat_template else 'off'} ({form.source})"]
    for task in requested:
        left_out = f", {len(task.skipped)} left out" if task.skipped else ""
        lines.append(f"task {task.name}: {len(task.questions)} questions{left_out}, {task.source}")
    return "\n".join([*lines, *[f"step {model.step}: {model.path}" for model in chosen]])


def evaluate(row: Sequence[Job], form: PromptForm, settings: EvalSettings) -> None:
    """Answer and score all tasks for one model; those that have all their responses get a result, even where others
    do not."""
    todo = [job for job in row if not job.finished]
    step = row[0].model.step
    if not todo:
        print(f"step {step}: finished already", flush=True)
        return
    done, total = sum(len(job.records) for job in todo), sum(len(job.task.questions) for job in todo)
    print(f"step {step}: {total} questions in {len(todo)} tasks, {done} of them answered already", flush=True)
    failure = None
    try:
        try:
            if done < total:
                with models.full_model(todo[0].model.path, settings.results) as path:
                    generate.respond(todo, path, form, settings.protocol, settings.engine)
        except (ClusterError, EngineError) as error:
            failure = error
        if complete := [job for job in todo if not job.missing]:
            print("scoring", flush=True)
            with Grader() as grader:  # not earlier: Ray's shutdown kills all child processes
                for job in complete:
                    jobs.finish(job, grader, settings.rewards, form)
        if failure:
            raise failure
    except UsageError:
        raise
    except ReportedError as error:
        raise ReportedError(f"{error}\n{describe_saved(todo, total)}") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(describe_saved(todo, total)) from None


def describe_saved(todo: Sequence[Job], total: int) -> str:
    count = sum(len(job.task.questions) if job.finished else len(job.records) for job in todo)
    return f"{count} of {total} questions are in {todo[0].directory.parent.parent}: repeat the command to resume"


def notes(found: Sequence[Result]) -> list[str]:
    """Notes on results that say little: hardly a response gives an answer that the reward finds, or a reward file
    failed."""
    lines = []
    for each in found:
        name, errors = f"{each.task}, step {each.step}", each.summary.get("counts", {}).get("errors")
        if failed := "; ".join(note for note in each.summary["task"]["notes"] if jobs.UNGRADED in note and errors):
            lines.append(
                f"\nwarning: {name}: {failed}. If that is the reward's fault, correct it and repeat the command: "
                "responses are kept, and graded again"
            )
        elif each.metrics["no_answer"] > MAX_NO_ANSWER:
            lines.append(
                f"\nnote: {each.task}: hardly a response gives an answer ({each.protocol['extraction']}), and maj@k is "
                "of those alone; a custom reward (--reward) may read others"
            )
    return list(dict.fromkeys(lines))


def table(found: Sequence[Result]) -> str:
    """Return the scores of this command, as text."""
    rows = [["task", "step", "pass@1 (95 % interval)", "maj@k (95 % interval)", "truncated %", "no answer %"]]
    for result in sorted(found, key=lambda each: (each.task, each.step)):
        metrics = result.metrics
        majority = majorities(metrics)[-1]
        rows.append(
            [
                result.task,
                str(result.step),
                score(metrics["pass@1"]),
                f"{majority} {score(metrics[majority])}",
                percent(metrics["truncated"]),
                percent(metrics["no_answer"]),
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n" + "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def write_report(settings: EvalSettings, protocol: str) -> Path | str:
    """Write the report; return its path, or the error: a full disk, or older results in the same place that
    do not go with these."""
    try:
        directory = settings.results if settings.output_dir else settings.checkpoints
        return evaluation_report.write_report([directory], protocol=protocol)
    except (UsageError, OSError) as error:
        return f"none: {error}"


main = command(
    "openrlhf-ebpo eval", __doc__.replace("BENCHMARKS", tasks.describe_benchmarks()), add_flags, run, extra="eval"
)

if __name__ == "__main__":
    main()
