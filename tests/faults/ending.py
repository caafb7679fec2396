"""What must hold at the end of a training, however often it was killed on its way."""

import json
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

from openrlhf_ebpo.run import resume
from openrlhf_ebpo.run.run_log import read_rollouts, read_run

TOLERANCE = 1e-12


def findings(run_dir: Path, ckpt_path: Path, steps_per_episode: int) -> dict:
    """Numbers and texts, for the table and for `problems`."""
    logged = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rolled = sorted(int(path.stem.removeprefix("step-")) for path in (run_dir / "rollouts").glob("step-*.parquet"))
    tables = [read_rollouts(run_dir, step) for step in rolled]
    skipped, doubled = prompts([table["prompt_id"].to_pylist() for table in tables], steps_per_episode)
    stored = json.loads((run_dir / "prior.json").read_text())
    newest = resume.newest_complete([ckpt_path / "_actor"]).tag
    return {
        "steps": len(rolled),
        "steps_in_order": logged == rolled == list(range(1, len(rolled) + 1)),
        "wrong_step_column": sum(set(t["step"].to_pylist()) != {s} for s, t in zip(rolled, tables, strict=True)),
        "prior_error": prior_error(tables, stored),
        "checkpoint_prior_is_the_same": json.loads((ckpt_path / "_actor" / newest / "prior.json").read_text())
        == stored,
        "state_prior_is_the_same": state_prior(ckpt_path / "_actor" / newest) == stored,
        "skipped": skipped,
        "doubled": doubled,
        "unlisted_checkpoints": unlisted(run_dir, ckpt_path),
        "damaged_checkpoints": sorted(p.name for p in folders(ckpt_path) if resume.damage(p)),
        "status": (read_run(run_dir) or {}).get("status"),
    }


def problems(found: dict) -> list[str]:
    """What is not as it must be; empty where all is."""
    wanted = {
        "steps_in_order": True,
        "wrong_step_column": 0,
        "checkpoint_prior_is_the_same": True,
        "state_prior_is_the_same": True,
        "skipped": 0,
        "doubled": 0,
        "unlisted_checkpoints": [],
        "damaged_checkpoints": [],
        "status": "complete",
    }
    wrong = [f"{name}: {found[name]}" for name, value in wanted.items() if found[name] != value]
    return wrong + [f"prior_error: {found['prior_error']:.2e}"] * (not found["prior_error"] <= TOLERANCE)


def prompts(steps: list[list[str]], steps_per_episode: int) -> tuple[int, int]:
    """How many prompts an episode lacks, and how many it has twice, over all episodes; the data set is what any step had."""
    every = {name for step in steps for name in step}
    skipped = doubled = 0
    for start in range(0, len(steps), steps_per_episode):
        drawn = Counter(name for step in steps[start : start + steps_per_episode] for name in set(step))
        whole = start + steps_per_episode <= len(steps)
        skipped += len(every - drawn.keys()) if whole else 0
        doubled += sum(count - 1 for count in drawn.values())
    return skipped, doubled


def prior_error(tables: list, stored: dict) -> float:
    """Largest difference between the stored moments and those of the logged rewards in exact rationals, relative where
    they exceed 1."""
    rewards, means = [], []
    for table in tables:
        rows = table.select(["group", "reward", "valid"]).to_pylist()
        for group in sorted({row["group"] for row in rows}):
            values = [Fraction(row["reward"]) for row in rows if row["group"] == group and row["valid"]]
            rewards += values
            means += [sum(values) / len(values)] if values else []
    pairs = [*differences(rewards, stored["rewards"]), *differences(means, stored["group_means"])]
    return max(float(abs(exact - Fraction(saved)) / max(1, abs(exact))) for exact, saved in pairs)


def differences(values: list[Fraction], moments: dict) -> Iterable[tuple[Fraction, float]]:
    count, total = len(values), sum(values)
    exact = (Fraction(count), total / count, sum(v * v for v in values) - total * total / count)
    return zip(exact, (moments["count"], moments["mean"], moments["m2"]), strict=True)


def state_prior(checkpoint: Path) -> dict | None:
    """The prior in the state that a resume loads."""
    import torch

    file = next(checkpoint.glob("*mp_rank_00_model_states.pt"))
    return torch.load(file, map_location="cpu", weights_only=False).get("ebpo_prior")


def unlisted(run_dir: Path, ckpt_path: Path) -> list[str]:
    """Where checkpoints.jsonl and the disk disagree: listed twice, whole and not listed, or newest listed and not there."""
    rows = [json.loads(line) for line in (run_dir / "checkpoints.jsonl").read_text().splitlines()]
    listed = [Path(row["checkpoint"]).name for row in rows]
    there = [path.name for path in folders(ckpt_path) if resume.damage(path) is None]
    twice = [f"{tag} is listed twice" for tag, count in Counter(listed).items() if count > 1]
    silent = [f"{tag} is not listed" for tag in there if tag not in listed]
    gone = [f"{listed[-1]} is listed and not there"] if listed and listed[-1] not in there else []
    return sorted(twice + silent + gone)


def folders(ckpt_path: Path) -> list[Path]:
    return [path for path in (ckpt_path / "_actor").iterdir() if path.is_dir()]
