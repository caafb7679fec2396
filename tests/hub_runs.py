"""Run directories as trainings leave them, with models that are a few megabytes of random numbers."""

import json
import multiprocessing
import signal
from pathlib import Path

import numpy as np
from checkpoints import save_checkpoint
from safetensors.numpy import save, save_file

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub import publish as publishing
from openrlhf_ebpo.hub import pull as pulling
from openrlhf_ebpo.hub.content import Publishable, local_file
from openrlhf_ebpo.hub.hub_settings import check_target
from openrlhf_ebpo.hub.publish import Commit, Repo, same_run
from openrlhf_ebpo.hub.push import Export, Push
from openrlhf_ebpo.hub_client import hub_api
from openrlhf_ebpo.run.run_log import read_run

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
        "ckpt": {"save_steps": 1, "path": str(folder / "ckpt"), "output_dir": str(folder / "model")},
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
        checkpoint = save_checkpoint(folder / "ckpt", step, b"pickle of step %d" % step)
        paths = {"tag": tag, "checkpoint": str(checkpoint), "model": str(folder / "ckpt" / f"{tag}_hf")}
        append_json_line(run_dir / "checkpoints.jsonl", {"step": step, **paths, "complete": True})
    return run_dir


def forked(*argv) -> multiprocessing.Process:
    """Start a command of `openrlhf-ebpo hub` in a process that has imported everything already."""
    process = multiprocessing.get_context("fork").Process(target=_command, args=(list(map(str, argv)),))
    process.start()
    return process


def _command(argv: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
    hub_cli.main(argv)


def model_of(run_dir: Path, step: int) -> Path:
    return run_dir.parent / "ckpt" / f"global_step{step}_hf"


def push(run_dir: Path, client=None, **how) -> list[str]:
    """Push what the Hub lacks, in one round; returns what was said, with the error at its end."""
    said: list[str] = []
    error = round_of(push_of(run_dir, client or hub_api(), said, **how))
    return said + [str(error)] * bool(error)


def round_of(push: Push) -> ReportedError | None:
    """The error of one round."""
    try:
        push.round()
    except ReportedError as error:
        return error
    return None


def push_of(run_dir: Path, client, said: list[str] | None = None, repo: str = REPO, **how) -> Push:
    report = (said if said is not None else []).append
    return Push(run_dir, Repo(client, repo), **{"public": False, "report": report, **how})


def publish(client, repo: str, files: dict, kind: str = "model", **commit):
    """Publish files (Paths, bytes) into a repo, whoever it is of."""
    files = {path: local_file(file) if isinstance(file, Path) else file for path, file in files.items()}
    wanted = Commit(**{"message": "m", "owner": anybody, **commit})
    return publishing.publish(Repo(client, repo, kind), Publishable(files), wanted)


def anybody(*_) -> None:
    """An owner who has nothing against a push."""


def pull(client, repo: str, folder: Path, revision: str | None = None, report=lambda *_: None):
    return pulling.pull(Repo(client, repo), folder, revision, report)


def set_repo(run_dir: Path, **hub) -> Path:
    """The run directory, as if its training had been given --hub.repo and the like."""
    run = read_run(run_dir)
    run["args"]["hub"] = {"repo": REPO, "public": False, **hub}
    write_json(run_dir / "run.json", run)
    return run_dir


def export_of(run_dir: Path, step: int) -> Export:
    return Export(step, model_of(run_dir, step))


def notices(hub) -> str:
    """The lines about --hub.repo at a training's start."""
    return "\n".join(check_target(Repo(hub_api(), REPO), False, same_run({}), "--hub.repo"))


def weights(size: int, seed: int = 0) -> bytes:
    """A safetensors file of `size` bytes, random numbers mostly."""
    overhead = len(save({"weight": np.zeros(size, "uint8")})) - size
    return save({"weight": np.random.default_rng(seed).integers(0, 256, size - overhead, "uint8")})


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 4096,
    "tie_word_embeddings": True,
}
CLASS = {"architectures": ["LlamaForCausalLM"]}  # compares with it, which imports transformers for seconds
BLOCK = {
    **{f"self_attn.{name}_proj.weight": (rows, 64) for name, rows in (("q", 64), ("k", 32), ("v", 32), ("o", 64))},
    **{"mlp.gate_proj.weight": (128, 64), "mlp.up_proj.weight": (128, 64), "mlp.down_proj.weight": (64, 128)},
    **{"input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,)},
}
SHAPES = {"model.embed_tokens.weight": (4096, 64), "model.norm.weight": (64,)}
SHAPES |= {f"model.layers.0.{name}": shape for name, shape in BLOCK.items()}


def tensors(step: int = 0) -> dict[str, np.ndarray]:
    """The weights of a small llama, other numbers for every step."""
    chance = np.random.default_rng(step)
    return {name: chance.standard_normal(shape).astype("float32") for name, shape in SHAPES.items()}


def export_model(folder: Path, step: int, **config) -> Path:
    """A model in the Hugging Face format, 1.2 MB, other numbers for every step."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(step), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "step": step, **config}))
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
