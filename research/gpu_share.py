"""Where the time of a training step goes, and which share of it is this package's own code: 0.5 billion weights, on a GPU.

A Qwen3 with random weights (the shape of Qwen3-0.6B, 22 layers) answers 64 prompts x 8 with 512 new tokens each, no more
and no less, since the end token is ignored. Two trainings of six steps, of which the first warms up:

  on    --advantage_estimator ebpo, and all else that is on by default
  off   --advantage_estimator group_norm (OpenRLHF's own code), no rollouts kept, --logger.no_policy_metrics

The rows are phase/* of metrics.jsonl: the trainer's own clock, in which every moment counts once. Rewards are computed while
others still generate; their row is what the step waits for after the last response. What the policy metrics cost is the
difference of the two trainings. One of the five steps saves a checkpoint.

    python research/gpu_share.py --output runs/gpu_share           on one GPU; minutes
    python research/gpu_share.py --output runs/share_tiny --tiny   the same with a tiny model, without a GPU; a minute or two

Writes share.json, share.md and share.png to --output. A training that is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from gpu import placement
from lab import training
from lab.plots import Panel, Series, draw
from lab.tables import table
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import read_json_lines, write_json, write_text
from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.quickstart.launch import launch
from openrlhf_ebpo.record.run_log import read_metrics, read_run, versions

STEPS, SAVED_AT = 6, 3  # the first warms up
PROMPT = 64  # characters, which are tokens
WORDS = 151_936  # of Qwen3's vocabulary
GOAL = 0.01
ARMS = {
    "on": {"advantage_estimator": "ebpo"},
    "off": {
        "advantage_estimator": "group_norm",
        "logger.rollouts_every": 1_000_000_000,
        "logger.no_policy_metrics": True,
    },
}
PHASES = {  # row -> phase/* of metrics.jsonl
    "generation": ("generating", "rewards"),
    "log-probabilities": ("log-probabilities",),
    "samples checked": ("checking_samples",),
    "advantages": ("advantages",),
    "batches made and handed over": ("making_experience",),
    "training": ("training",),
    "weight sync": ("syncing_weights",),
    "run log": ("run_log",),
    "checkpoint": ("saving",),
}
METRICS, REWARDS, REST = "policy metrics", "rewards, waited for", "unexplained"
CONTROLLER = ("samples checked", "advantages", "run log")  # our own code, in the trainer's process
ORDER = (
    *("generation", REWARDS, "log-probabilities", "samples checked", "advantages", "batches made and handed over"),
    *("training", METRICS, "weight sync", "run log", "checkpoint", REST),
)


@dataclass(frozen=True)
class Size:
    prompts: int = 64  # of a step
    samples: int = 8
    tokens: int = 512
    layers: int = 22
    hidden: int = 1024
    words: int = WORDS
    micro_batch: int = 8

    @property
    def responses(self) -> int:
        return self.prompts * self.samples


TINY = Size(prompts=8, samples=4, tokens=32, layers=2, hidden=64, words=2000)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_share"), metavar="DIR")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and 8 x 4 x 32 tokens: does it work?")
    parser.add_argument(
        "--enforce_eager", action="store_true", help="vLLM without CUDA graphs, which it compiles first"
    )


def run(options: argparse.Namespace) -> None:
    """Raises:
    StageFailed: a training failed.
    ReportedError: the folder holds a training of another size, or one whose steps cannot be read.
    """
    size, output = TINY if options.tiny else Size(), options.output.absolute()
    prepare(output, size)
    for arm in ARMS:
        train(output, arm, size, options.enforce_eager)
    arms = {arm: steps_of(output / arm, size.responses) for arm in ARMS}
    found = {"size": asdict(size), "machine": placement.machine(), "versions": versions(), **summary(arms)}
    write_json(output / "share.json", found)
    write_text(output / "share.md", report(found))
    title = f"Where a step's time goes: {size.prompts} × {size.samples} responses of {size.tokens} tokens"
    draw(output / "share.png", title, panels(found["rows"]), f"Means of {STEPS - 1} steps")
    print(report(found))


# The two trainings


def prepare(output: Path, size: Size) -> None:
    """Model, prompts, and the size, which no other may follow.

    Raises:
        ReportedError: in the folder is another size, or something else.
    """
    settings = output / "size.json"
    if not settings.exists() and output.exists() and any(output.iterdir()):
        raise ReportedError(f"--output {output} holds something else: name a new folder")
    if settings.exists() and (found := json.loads(settings.read_text())) != asdict(size):
        raise ReportedError(
            f"--output {output} was begun with {found}, and this is {asdict(size)}: name another folder"
        )
    write_json(settings, asdict(size))
    if not (output / "model" / "tokenizer.json").exists():
        print(f"a Qwen3 with random weights, {size.layers} layers of width {size.hidden}", flush=True)
        make_model(output / "model", size)
    texts = random.Random(0)
    words = vocabulary(size.words)
    rows = ({"prompt": "".join(texts.choices(words, k=PROMPT))} for _ in range(STEPS * size.prompts))
    write_text(output / "prompts.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def make_model(directory: Path, size: Size) -> None:
    sizes = {"num_hidden_layers": size.layers, "hidden_size": size.hidden, "max_position_embeddings": 1024}
    if size.hidden == 1024:
        sizes |= {"intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
        sizes |= {"initializer_range": 0.02}
    tiny_model.build(directory, vocabulary(size.words - 3), **sizes)  # three special tokens; the fourth is the space


def vocabulary(words: int) -> str:
    """So many different characters, without those that no text may hold."""
    return "".join(chr(i) for i in range(0x20, 0x20 + words + 0x800) if not 0xD800 <= i < 0xE000)[:words]


def train(output: Path, arm: str, size: Size, eager: bool) -> None:
    folder = output / arm
    if (read_run(folder / "run") or {}).get("status") == "complete":
        return
    print(f"training with our parts {arm}: {STEPS} steps; all it says is in {folder / 'log'}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)  # one that did not come to its end
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("gpu") / "fixed_length.py", folder / "agent.py")
    (folder / "reward.py").write_text(training.REWARD)
    os.environ.setdefault("RAY_ADDRESS", "local")  # not a cluster of somebody else, who may end it
    launch("train_ppo_ray", training_flags(output, folder, arm, size, eager), folder / "log")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # gigabytes, and only their time counts


def training_flags(output: Path, folder: Path, arm: str, size: Size, eager: bool) -> dict:
    flags = {
        "actor.model_name_or_path": output / "model",
        "actor.adam.lr": 0,  # so that both trainings do the same
        "data.prompt_dataset": output / "prompts.jsonl",
        "data.input_key": "prompt",
        "data.order": "as_is",
        "data.max_len": PROMPT + size.tokens,
        "train.agent_func_path": folder / "agent.py",
        "rollout.batch_size": size.prompts,
        "rollout.n_samples_per_prompt": size.samples,
        "rollout.max_new_tokens": size.tokens,
        "rollout.micro_batch_size": size.micro_batch,
        "train.batch_size": size.responses,
        "train.micro_batch_size": size.micro_batch,
        "train.seed": 1,
        "algo.kl.init_coef": 0,
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "checkpoints" / "last",
        "ckpt.save_steps": SAVED_AT,
        "ckpt.max_num": 1,
        "logger.run_dir": folder / "run",
        **placement.flags(engine_share=0.4),
        **ARMS[arm],
    }
    return {**flags, "vllm.enforce_eager": True} if eager else flags


# What it comes to


def steps_of(folder: Path, responses: int) -> list[dict[str, float]]:
    """Seconds of each row in each step but the first, with `clock`: from one line of metrics.jsonl to the next.

    Raises:
        ReportedError: there are not as many steps and rewards as were asked for.
    """
    metrics, waits = read_metrics(folder / "run"), read_json_lines(folder / "rewards.jsonl")
    if (len(metrics), len(waits)) != (STEPS, STEPS * responses):
        wanted = f"{STEPS} steps and {STEPS * responses} rewards"
        raise ReportedError(f"{folder} has {len(metrics)} steps and {len(waits)} rewards, and not {wanted}: remove it")
    times = np.array(waits).reshape(STEPS, responses, 2).max(1)
    waited = times[:, 1] - times[:, 0]
    pairs = zip(metrics, metrics[1:], waited[1:], strict=False)
    return [rows_of(row, row["time"] - before["time"], float(wait)) for before, row, wait in pairs]


def rows_of(metrics: dict, clock: float, waited: float) -> dict[str, float]:
    rows = {name: sum(metrics.get(f"phase/{each}", 0.0) for each in phases) for name, phases in PHASES.items()}
    rest = round(clock - sum(rows.values()), 6) + 0.0  # not -0.0
    return {**rows, "generation": rows["generation"] - waited, REWARDS: waited, REST: rest, "clock": clock}


def summary(arms: dict[str, list[dict[str, float]]]) -> dict:
    """Mean seconds of a step by row, with all our parts on; what policy metrics cost is taken out of `training`."""
    on, off = ({name: [step[name] for step in arms[arm]] for name in arms[arm][0]} for arm in ("on", "off"))
    rows = {name: float(np.mean(values)) for name, values in on.items()}
    metrics = difference(on["training"], off["training"])
    rows[METRICS] = max(metrics["mean"], 0.0)
    rows["training"] -= rows[METRICS]
    clock = rows.pop("clock")
    step = clock - rows["checkpoint"]
    controller = sum(rows[name] for name in CONTROLLER)
    whole = difference(without_saving(on), without_saving(off))
    return {
        "rows": {name: rows[name] for name in ORDER},
        "clock": clock,
        "share": controller / step,
        "share_with_policy_metrics": (controller + rows[METRICS]) / step,
        "policy_metrics": metrics,
        "on_minus_off": {**whole, "of": step},
        "steps": arms,
    }


def without_saving(rows: dict[str, list[float]]) -> np.ndarray:
    return np.array(rows["clock"]) - np.array(rows["checkpoint"])


def difference(on: Sequence[float], off: Sequence[float]) -> dict[str, float]:
    """Of the means of two trainings' steps, with Welch's 95 % interval."""
    low, high = stats.ttest_ind(on, off, equal_var=False).confidence_interval()
    return {"mean": float(np.mean(on) - np.mean(off)), "low": float(low), "high": float(high)}


def report(found: dict) -> str:
    size, clock = found["size"], found["clock"]
    head = f"**{size['prompts']} prompts × {size['samples']} × {size['tokens']} new tokens, {size['layers']} layers of width {size['hidden']}** ({found['machine']})"
    rows = [[name, f"{seconds:.4f}", f"{seconds / clock:.2%}"] for name, seconds in found["rows"].items()]
    rows.append(["all, by the clock", f"{clock:.4f}", ""])
    parts = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return (
        "\n\n".join(
            [
                head,
                table(["part of a step", "seconds", "share"], rows),
                *findings(found),
                f"Means of {STEPS - 1} steps, one of which saves a checkpoint. {parts}.",
            ]
        )
        + "\n"
    )


def findings(found: dict) -> list[str]:
    own, whole, metrics = found["share"], found["on_minus_off"], found["policy_metrics"]
    verdict = "under" if own < GOAL else "NOT under"
    ends = "{mean:+.3f} s a step, 95 % interval {low:+.3f} to {high:+.3f}"
    return [
        f"**Our own code in the trainer ({', '.join(CONTROLLER)}): {own:.2%} of a step without saving, {verdict} {GOAL:.0%}**; "
        f"with the policy metrics {found['share_with_policy_metrics']:.2%}.",
        f"Policy metrics: {ends.format(**metrics)} (training with them minus without).",
        f"All that can be turned off: {ends.format(**whole)}, of {whole['of']:.3f} s.",
    ]


def panels(rows: dict[str, float]) -> list[Panel]:
    """All parts of a step, and our own code alone at its own scale."""
    own = [*CONTROLLER, METRICS]
    others = [name for name in rows if name not in own]
    return [
        Panel(
            title, "", "seconds a step", [Series(title, "EBPO", names, np.array([[rows[n] for n in names]]))], bars=True
        )
        for title, names in (("without our own code", others), ("our own code", own))
    ]


main = command("python research/gpu_share.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
