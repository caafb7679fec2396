"""What grading maths adds to a rollout: 512 prompts x 8 samples, graded while a real rollout actor generates.

A Ray of its own, upstream's rollout actor with vLLM and a tiny model; the reward file swaps each generated text for a
realistic answer (a long derivation, 300 to 8,000 characters, right, wrong or missing; one in forty is hostile: towers
of powers, endless expansions, nesting, 100 kB of one digit) and hands it to openrlhf_ebpo's reward_func, in a process of
its own, as every reward file is called. The same rollout with a constant reward is the baseline. Every reward is checked against what is known.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from openrlhf_ebpo.quickstart import tiny_model

CONSTANT = "import torch\ndef reward_func(queries, prompts, labels, **kwargs):\n    return {'rewards': torch.ones(1)}\n"
SWAPPED = """
import itertools, json, threading
from openrlhf_ebpo.rewards.math import reward_func as graded
ROWS = {key: itertools.count() for key in json.load(open(%(file)r))}
ANSWERS = json.load(open(%(file)r))
LOCK = threading.Lock()
def reward_func(queries, prompts, labels, **kwargs):
    with LOCK:
        sample = next(ROWS[labels[0]])
    row = ANSWERS[labels[0]][sample]
    reward = graded([prompts[0] + row["response"]], prompts, [row["gold"]], **kwargs)
    reward["extra_logs"]["as_known"] = float(reward["rewards"].item() == row["correct"])
    return reward
"""
# gold, right answers, wrong answers
PROBLEMS = (
    ("{n}", ["{n}", "{n}.0", "x={n}", "\\text{{{n}}}"], ["{m}", "-{n}", "\\frac{{{n}}}{{{m}}}"]),
    ("\\frac{{{n}}}{{{m}}}", ["\\dfrac{{{n}}}{{{m}}}", "{n}/{m}"], ["\\frac{{{m}}}{{{n}}}", "{n}"]),
    ("{n}\\sqrt{{{p}}}", ["\\sqrt{{{p}}}\\cdot {n}", "{n} \\sqrt{{{p}}}"], ["{m}\\sqrt{{{p}}}", "\\sqrt{{{n}}}"]),
    ("({n},{m})", ["({n}, {m})", "\\left({n},{m}\\right)"], ["({m},{n})", "{n}"]),
    ("{n},{m}", ["{m}, {n}", "{n} \\text{{ and }} {m}"], ["{n}", "{n},{p}"]),
    ("x^2-{n}", ["-{n}+x^2", "(x^2-{n})"], ["x^2+{n}", "x-{n}"]),
    ("[{n},\\infty)", ["[{n},\\infty)", "x\\ge {n}"], ["({n},\\infty)", "[{m},\\infty)"]),
    ("{n}\\pi", ["{n}\\pi", "\\pi\\cdot {n}"], ["{m}\\pi", "{n}"]),
)
WEIGHTS = (7, 1, 1, 1, 1, 1, 1, 1)  # half integers; DAPO's golds are nothing else, those of MATH all sorts
HOSTILE = (
    "{n}^{{10^{{10^{{{m}}}}}}}",
    "{n}0000000!",
    "(a+b+c+d+e)^{{{n}}}",
    "{n}" * 40_000,
    "\\frac{{1}}{{" * 300 + "{n}" + "}}" * 300,
    "\\sum_{{k=1}}^{{10^{{{m}}}}} k^k",
    "\\binom{{10^9}}{{{n}000000}}",
    "__import__('os').abort(){n}",
)
STEPS = (
    "Let $x = {n}$ and consider $\\frac{{x^2 - {m}}}{{x + 1}}$; we get $\\boxed{{?}}$ later on.",
    "Then $\\sqrt{{{n} + {m}}} \\le {p}$, so we may assume that $k \\in \\{{1, \\dots, {n}\\}}$.",
    "Wait, that is not right. Since ${n} \\equiv {m} \\pmod{{{p}}}$, we try again.",
    "\\[\n\\sum_{{i=1}}^{{{n}}} i = \\frac{{{n}({n}+1)}}{{2}}\n\\]",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=512, help="prompts, of 8 samples each (default 512)")
    parser.add_argument("--pool-only", action="store_true", help="leave out Ray and the rollouts")
    options = parser.parse_args()
    answers = make_answers(random.Random(0), options.prompts)
    pool_alone(answers)
    if options.pool_only:
        return
    with tempfile.TemporaryDirectory() as directory:
        constant = rollout(Path(directory), "constant", CONSTANT, answers)
        (Path(directory) / "answers.json").write_text(json.dumps(answers))
        graded = rollout(Path(directory), "graded", SWAPPED % {"file": str(Path(directory) / "answers.json")}, answers)
    print(f"{len(answers) * 8} samples: {constant:.1f} s with a constant reward, {graded:.1f} s graded")
    print(f"grading adds {graded - constant:.1f} s")


def make_answers(rng: random.Random, prompts: int) -> dict[str, list[dict]]:
    """For each prompt 8 rows of gold, response and correct."""
    return {f"q{i:04d}": make_group(rng, rng.choices(PROBLEMS, WEIGHTS)[0]) for i in range(prompts)}


def make_group(rng: random.Random, problem) -> list[dict]:
    gold, right, wrong = problem
    numbers = {"n": rng.randint(20, 900), "m": 10 + 17 * rng.randint(60, 90), "p": rng.choice([2, 3, 5, 7, 11, 13])}
    numbers["n"] += numbers["n"] % 17 == 0  # n/m stays reduced, and no root comes out
    rows = []
    for _ in range(8):
        kind = rng.choices(("right", "wrong", "none", "hostile"), (45, 40, 12.5, 2.5))[0]
        template = {"right": rng.choice(right), "wrong": rng.choice(wrong), "hostile": rng.choice(HOSTILE)}.get(kind)
        numbers_here = numbers if kind != "hostile" else numbers | {"n": rng.randint(100, 999)}
        answer = template and template.format(**numbers_here)
        rows.append({"gold": gold.format(**numbers), "response": derivation(rng, answer), "correct": kind == "right"})
    return rows


def derivation(rng: random.Random, answer: str | None) -> str:
    length, lines = int(rng.lognormvariate(7.9, 0.7)), []
    while sum(map(len, lines)) < min(max(length, 300), 8000):
        numbers = {name: rng.randint(2, 99) for name in "nmp"}
        lines.append(rng.choice(STEPS).format(**numbers))
    ending = rng.choice(["Hence $\\boxed{%s}$.", "Answer: %s", "Answer: $%s$"]) if answer else ""
    if "box" not in ending:  # a box on the way would be the answer
        lines = [line.replace("\\boxed{?}", "?") for line in lines]
    lines += [ending % answer] if answer else []
    return "\n".join(lines) + "<|im_end|>"


def pool_alone(answers: dict) -> None:
    """The pool from 32 threads, without a rollout."""
    from openrlhf_ebpo.rewards.pool import shared_pool

    rows = [row for group in answers.values() for row in group]
    start = time.perf_counter()
    list(map(shared_pool().grade, ["1"] * 8, [f"\\boxed{{{i}}}" for i in range(8)]))
    ready = time.perf_counter()
    before = processor_seconds()
    with ThreadPoolExecutor(32) as threads:
        verdicts = list(threads.map(lambda row: shared_pool().grade(row["gold"], row["response"]), rows))
    seconds = time.perf_counter() - ready
    spent = processor_seconds() - before
    bad = [
        (row["gold"], row["response"][-60:], verdict.outcome)
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict.correct != row["correct"]
    ]
    assert not bad, bad[:5]
    cut = sum(verdict.outcome in ("timeout", "crash") for verdict in verdicts)
    print(
        f"pool alone, {shared_pool().workers} workers: ready in {ready - start:.1f} s, {len(rows)} answers "
        f"({sum(map(len, (row['response'] for row in rows))) // len(rows)} characters on average, {cut} cut off) "
        f"in {seconds:.1f} s, {len(rows) / seconds:.0f} a second, {spent:.1f} s of processor time, all as known"
    )


def processor_seconds() -> float:
    """Of this process and its children that are there."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def rollout(directory: Path, name: str, reward: str, answers: dict) -> float:
    """Seconds for one rollout of all prompts in an actor of its own."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import ray
    from transformers import AutoTokenizer
    from vllm import SamplingParams

    from openrlhf_ebpo.engines import cluster
    from openrlhf_ebpo.rewards.limits import Limits
    from openrlhf_ebpo.seams.install import install

    (directory / f"{name}.py").write_text(reward)
    if not (directory / "model").exists():
        tiny_model.build(directory / "model", [f"{key}\n" for key in answers], hidden_size=32, intermediate_size=64)
    install()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, runtime_env=cluster.runtime_env())
    try:
        from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call, create_vllm_engines

        engines = create_vllm_engines(
            1, 1, str(directory / "model"), 0, False, False, True, 64, remote_rm_url=str(directory / f"{name}.py")
        )
        limits = Limits(workers=1)  # the file counts its samples
        batch_vllm_engine_call(engines, "limit_rewards", limits)
        tokenizer = AutoTokenizer.from_pretrained(directory / "model")
        params = SamplingParams(max_tokens=8, temperature=1.0)
        start = time.perf_counter()
        requests = [
            engines[0].generate_responses.remote(f"{key}\n", key, params, 64, tokenizer, num_samples=8)
            for key in answers
        ]
        responses = [response for group in ray.get(requests) for response in group]
        seconds = time.perf_counter() - start
    finally:
        ray.shutdown()
    check(name, responses)
    return seconds


def check(name: str, responses: list[dict]) -> None:
    missing = [response for response in responses if response["reward"] is None]
    assert not missing, missing[0]
    if name == "graded":
        wrong = sum(response["extra_logs"]["as_known"] != 1.0 for response in responses)
        cut = sum(float(response["extra_logs"]["math_timeout"]) for response in responses)
        print(f"rollout: {len(responses)} rewards, {wrong} differ from what is known, {cut:.0f} gradings cut off")
        assert not wrong


if __name__ == "__main__":
    sys.exit(main())
