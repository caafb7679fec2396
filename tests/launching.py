"""The launch scripts as a test calls them: bash, the flags that they compose, and many dry runs in one process."""

import functools
import json
import os
import subprocess
import sys
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
# runs many command lines in one process: the imports are paid for once
DRY_RUNS = """
import contextlib, io, json, sys, traceback
from openrlhf_ebpo.cli import train_ppo_ray

def dry_run(argv):
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            train_ppo_ray.run([*argv, "--dry_run", "--verbose"])
    except BaseException:
        return {"error": traceback.format_exc()}
    text = output.getvalue()
    start = text.index("{\\n")
    arguments, end = json.JSONDecoder().raw_decode(text[start:])
    return {"args": arguments, "notices": text[start + end :]}

for line in sys.stdin:
    answers = [dry_run(argv) for argv in json.loads(line)]
    sys.__stdout__.write(json.dumps({"answers": answers}) + "\\n")
    sys.__stdout__.flush()
"""


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
def dry_runner() -> subprocess.Popen:
    """One process for all dry runs of a session; it ends when the session's end closes its input."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", DRY_RUNS], text=True, env=CLEAN, cwd=ROOT, **pipes)


def dry_runs(argvs: list[list[str]]) -> list[dict]:
    """Of each command line what it says: `args` and `notices`, or an `error`."""
    process = dry_runner()
    process.stdin.write(json.dumps(argvs) + "\n")
    process.stdin.flush()
    for line in process.stdout:  # what libraries print comes before the answers
        if line.startswith('{"answers": '):
            return json.loads(line)["answers"]
    raise AssertionError(f"the process of dry runs ended with status {process.wait()}; its errors stand above")


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
