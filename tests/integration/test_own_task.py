"""docs/own_task.md: its commands, typed in their order, lead from a file to a model that transformers loads."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from forked_driver import ForkedDriver
from patience import seconds

from openrlhf_ebpo import cli

ROOT = Path(__file__).parents[2]
TRAIN = "openrlhf_ebpo.cli.train_ppo_ray"
PAGE = (ROOT / "docs" / "own_task.md").read_text()
EXAMPLE = ROOT / "examples" / "own_task"
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
SMALLER = {"--train.num_episodes 5": "--train.num_episodes 1", "--ckpt.save_steps 10": "--ckpt.save_steps 8"}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny model that reads the example's characters as a chat."""
    from transformers import AutoTokenizer

    from openrlhf_ebpo.quickstart import tiny_model

    folder = tmp_path_factory.mktemp("own_task") / "model"
    rows = (EXAMPLE / "problems.jsonl").read_text() + (EXAMPLE / "heldout.jsonl").read_text()
    tiny_model.build(folder, [rows, "<|im_start|>assistant user\n"], hidden_size=32, intermediate_size=64)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return folder


def typed(model: Path, runs: Path, *blocks: str) -> str:
    """The page's lines, without those that set up or wait for a person, with another model, folder and fewer steps."""
    lines = "".join(blocks).splitlines()
    text = "\n".join(line for line in lines if not line.startswith(("bash scripts/setup.sh", "openrlhf-ebpo space")))
    text = re.sub(r"MODEL=\S+", f"MODEL={model}", re.sub(r"RUNS=\S+", f"RUNS={runs}", text))
    text = text.replace(" me/", " owner/")  # to whom the token of hub_server belongs
    for long, short in SMALLER.items():
        assert long in text or "train=(" not in text
        text = text.replace(long, short)
    return "set -e\n" + text


def run(script: str, **environment: str) -> str:
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=seconds(840),
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_the_reward_on_the_page_is_the_file():
    shown = re.search(r"<!-- examples/own_task/reward.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)[1]
    assert (EXAMPLE / "reward.py").read_text().endswith(shown)


def called(script: str) -> list[list[str]]:
    """Return the words of every call of openrlhf-ebpo in a script, as the shell expands them."""
    shown = run("openrlhf-ebpo() { printf '%q ' \"$@\"; echo; }\n" + script)
    return [shlex.split(line) for line in shown.splitlines()]


def test_the_flags_of_the_page_are_accepted(model, tmp_path, capsys):
    """A dry run of both trainings; of the other commands every flag is in the --help."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = called(typed(model, tmp_path / "runs", *BLOCKS))
    trainings = [[*words, "--dry_run"] for name, *words in commands if name == "train" and "--dry_run" not in words]
    logs = [tmp_path / f"{number}.log" for number in range(len(trainings))]
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    started = [ForkedDriver(TRAIN, words, log, environment) for words, log in zip(trainings, logs, strict=True)]
    for process, log in zip(started, logs, strict=True):
        assert process.wait(seconds(120)) == 0 and "dry run" in log.read_text(), log.read_text()[-4000:]
    assert len(logs) == 2 and not (tmp_path / "runs").exists()
    for name, *words in commands:
        if name != "train":
            with pytest.raises(SystemExit, match="0"):
                cli.main([name, *words[: name == "hub"], "--help"])
            known = set(re.findall(r"--[\w.]+", capsys.readouterr().out))
            assert {word for word in words if word.startswith("--")} <= known, words


@pytest.mark.nightly  # daily: integration/test_own_task.py itself: the flags of the page are accepted
@pytest.mark.timeout(seconds(900))  # three starts of the stack to train or sample, two to evaluate
def test_the_page_leads_to_a_model_that_transformers_loads(model, tmp_path):
    from hub_server import HubServer

    runs = tmp_path / "runs"
    hub = HubServer().start()
    try:
        script = typed(model, runs, *BLOCKS)
        printed = run(script, **hub.environment, HF_HOME=str(tmp_path / "hf"))
    finally:
        hub.stop()
    assert "sample:" in printed
    for estimator in ("ebpo", "grpo"):
        record = json.loads((runs / estimator / "run" / "run.json").read_text())
        assert record["status"] == "complete"
        [summary] = (runs / estimator / "run" / "eval").glob("*/*/step-000008/summary.json")
        assert "reward.py" in summary.read_text()
    program = re.findall(r"^```python\n(from transformers.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
    program = program.replace("runs/own_task/pulled", str(runs / "pulled"))
    subprocess.run([sys.executable, "-c", program], check=True, timeout=seconds(120))
