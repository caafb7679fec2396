"""The launch scripts as a test calls them: bash, the flags that they compose, and many dry runs in one process."""

import contextlib
import functools
import io
import json
import multiprocessing
import os
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.quickstart.tiny_model import build_tokenizer

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "scripts" / "launch"
PUBLISHED = json.loads((ROOT / "tests" / "data" / "model_configs.json").read_text())
MODELS = sorted(path.stem for path in (LAUNCH / "models").glob("*.sh"))
METHODS = sorted(path.stem for path in (LAUNCH / "methods").glob("*.sh"))
OURS = ("NODES", "GPUS_PER_NODE", "GPU_GB", "DATA_DIR", "RUN_DIR", "MODEL_PATH", "CHAT_TEMPLATE", "RAY_ADDRESS")
CLEAN = {name: value for name, value in os.environ.items() if name not in OURS and not name.startswith("SLURM")}
CLEAN["PATH"] = f"{Path(sys.executable).parent}:{CLEAN['PATH']}"
ROWS = [
    {
        "id": str(i),
        "prompt": f"What is {i} + 1?",
        "label": str(i + 1),
        "datasource": "math_dapo",
        "cluster": str(i // 4),
    }
    for i in range(8)
]


def bash(script: str, *words: object, **env: object) -> subprocess.CompletedProcess:
    """Runs in the project's root."""
    command = ["bash", str(LAUNCH / script), *map(str, words)]
    environment = {**CLEAN, **{name: str(value) for name, value in env.items()}}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)


def composed(*words: object, **env: object) -> list[str]:
    """The flags for MODEL, METHOD, G and what else is given."""
    result = bash("run.sh", "--print", *words, **env)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def value(argv: list[str], flag: str) -> str:
    """As argparse takes it: the last one wins."""
    return argv[len(argv) - argv[::-1].index(flag)]


@functools.cache
def dry_runner() -> Connection:
    """One process for all dry runs of a session: the imports are paid for once, or not at all if this process has
    imported the stack. It ends with the session."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    context.Process(target=answer_dry_runs, args=(ours, theirs), daemon=True).start()
    theirs.close()
    return ours


def answer_dry_runs(ours: Connection, theirs: Connection) -> None:
    ours.close()
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(CLEAN)
    ask_each_reward_once()
    with contextlib.suppress(EOFError):
        while True:
            theirs.send([dry_run(argv) for argv in theirs.recv()])


def ask_each_reward_once() -> None:
    """Starting a reward's processes takes longer than the rest of a dry run; the labels are the same in all of them."""
    from openrlhf_ebpo.train import reward_check

    ask, notices = reward_check.training_notices, {}

    def asked(rewards, *rest) -> list[str]:
        if rewards.sources not in notices:
            notices[rewards.sources] = ask(rewards, *rest)
        return notices[rewards.sources]

    reward_check.training_notices = asked


def dry_run(argv: list[str]) -> dict:
    from openrlhf_ebpo.train import driver

    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            driver.run([*argv, "--dry_run", "--verbose"])
    except BaseException:
        return {"error": traceback.format_exc()}
    text = output.getvalue()
    start = text.index("{\n")
    arguments, end = json.JSONDecoder().raw_decode(text[start:])
    return {"args": arguments, "notices": text[start + end :]}


def dry_runs(argvs: list[list[str]]) -> list[dict]:
    """Of each command line what it says: `args` and `notices`, or an `error`."""
    dry_runner().send(argvs)
    return dry_runner().recv()


def write_sparse_weights(path: Path, layers: int, number: int) -> None:
    """Write a file of a billion weights a layer that takes no room on the disk; `number` tells files apart."""
    size = 2 * 10**9
    header = {
        f"layers.{i}.w": {"dtype": "BF16", "shape": [10**9], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(layers)
    }
    packed = json.dumps({"__metadata__": {"number": str(number)}, **header}).encode()
    with open(path, "wb") as file:
        file.write(len(packed).to_bytes(8, "little") + packed)
        file.truncate(file.tell() + layers * size)


def furnish(root: Path) -> Path:
    """Write models/NAME as published, with sparse weights and a tiny tokenizer; data/ as `openrlhf-ebpo data` does."""
    for number, name in enumerate(MODELS):
        tokenizer = build_tokenizer([row["prompt"] for row in ROWS])
        if name != "llama3_1_8b":
            tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
        tokenizer.save_pretrained(root / "models" / name)
        (root / "models" / name / "config.json").write_text(json.dumps(PUBLISHED[name]))
        write_sparse_weights(root / "models" / name / "model.safetensors", PUBLISHED[name]["num_hidden_layers"], number)
    (root / "data").mkdir()
    rows = pa.Table.from_pylist(ROWS)
    for name in ("train", "validation", "topic_order", "topic_order_release"):
        pq.write_table(rows, root / "data" / f"{name}.parquet")
    for name in MODELS:
        pq.write_table(rows, root / "data" / f"difficulty_order_{name}.parquet")
    return root
