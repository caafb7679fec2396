"""Run directories as trainings leave them, with models that are a few megabytes of random numbers."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save, save_file

from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.run import manifest

REPO = "owner/model"
PRIOR = {"schema": 1, "rewards": {"count": 64, "mean": 0.25}}
SECRET = "0123456789abcdef0123456789abcdef01234567"


def make_run(folder: Path, steps=(2, 4), status: str = "complete", started: str = "2026-01-01T00:00:00+00:00") -> Path:
    """`folder`/run is the run directory, `folder`/ckpt has a model and a checkpoint for each of `steps`."""
    run_dir = folder / "run"
    run_dir.mkdir(parents=True)
    settings = {
        "actor": {"model_name_or_path": "Qwen/Qwen3-0.6B"},
        "algo": {"advantage": {"estimator": "ebpo"}},
        "ckpt": {"path": str(folder / "ckpt"), "output_dir": str(folder / "model")},
        "data": {"prompt_dataset": "owner/questions"},
        "logger": {"wandb": {"key": "<redacted>"}},
        "rollout": {"n_samples_per_prompt": 4},
    }
    run = {"schema": 1, "name": "test", "status": status, "argv": ["--ckpt.path", "ckpt"], "args": settings}
    known = {"model": "Qwen/Qwen3-0.6B", "dataset": "owner/questions", "seed": 1, "versions": {}}
    write_json(run_dir / "run.json", {**run, **known, "started": started, "ended": None})
    write_json(run_dir / "prior.json", PRIOR)
    for step in range(1, max(steps, default=0) + 1):
        append_json_line(run_dir / "metrics.jsonl", {"step": step, "time": step, "rollout/reward_mean": step / 10})
    for step in steps:
        tag = f"global_step{step}"
        export_model(folder / "ckpt" / f"{tag}_hf", step)
        checkpoint = folder / "ckpt" / "_actor" / tag
        checkpoint.mkdir(parents=True)
        (checkpoint / "mp_rank_00_model_states.pt").write_bytes(b"pickle of step %d" % step)
        manifest.complete(checkpoint)
        paths = {"tag": tag, "checkpoint": str(checkpoint), "model": str(folder / "ckpt" / f"{tag}_hf")}
        append_json_line(run_dir / "checkpoints.jsonl", {"step": step, **paths, "complete": True})
    return run_dir


def model_of(run_dir: Path, step: int) -> Path:
    return run_dir.parent / "ckpt" / f"global_step{step}_hf"


def queue(run_dir: Path, *steps: int, **how) -> outbox.Item:
    """Take snapshots of saved steps, for a push; returns the last."""
    for step in steps:
        item = outbox.add(run_dir, step, model_of(run_dir, step), **{"repo": REPO, **how})
    return item


def states(run_dir: Path) -> dict[str, str]:
    """step -> state, of hub.json."""
    return {step: row["state"] for step, row in outbox.read_state(run_dir)["steps"].items()}


def weights(size: int, seed: int = 0) -> bytes:
    """A safetensors file of `size` bytes, random numbers mostly."""
    overhead = len(save({"weight": np.zeros(size, "uint8")})) - size
    return save({"weight": np.random.default_rng(seed).integers(0, 256, size - overhead, "uint8")})


def export_model(folder: Path, step: int) -> Path:
    """A model in the Hugging Face format, 1.2 MB, other numbers for every step."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = np.random.default_rng(step).standard_normal(300_000).astype("float32")
    save_file({"weight": weights}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "step": step}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "optimizer.bin").write_bytes(b"a pickle that never goes")
    write_json(folder / "prior.json", {**PRIOR, "batches": step})
    return folder


def assert_pushed(hub, run_dir, step, repo=REPO):
    found = hub.repo(repo).files(f"step-{step:06d}")
    model = export_model(run_dir.parent / "again" / str(step), step)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja", "prior.json"):
        assert found[name] == (model / name).read_bytes(), (step, name)
    assert "optimizer.bin" not in found and json.loads(found["run.json"])["name"] == "test"
