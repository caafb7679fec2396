"""TRL's GRPOTrainer with estimators of the registry: real trainings of a tiny Qwen3 on a CPU, killed and resumed, on
one process and two."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip(
    "trl", reason="runs in the environment of requirements/trl.txt: bash scripts/test_integrations.sh trl"
)
import torch
from patience import seconds
from trl_training import Recorded, has_an_a, model, tokenizer

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.integrations.running import RunningEstimator
from openrlhf_ebpo.integrations.trl import EBPOMixin

TABLE = Path(__file__).parents[1] / "data" / "golden_advantages.json"
GOLDEN = json.loads(TABLE.read_text())
SCRIPT = Path(__file__).with_name("trl_training.py")


def train(output: Path, *arguments: str, processes: int = 1, status: int = 0, **trl) -> str:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    command = [sys.executable, *(launch if processes > 1 else []), str(SCRIPT), "--output", str(output), *arguments]
    done = subprocess.run([*command, "--trl", json.dumps(trl)], capture_output=True, text=True, timeout=seconds(240))
    assert done.returncode == status, done.stderr[-3000:]
    return done.stdout + done.stderr


def batches(output: Path, rank: int = 0) -> list[dict]:
    return json.loads((output / f"batches-{rank}.json").read_text())


def rewards(batch: dict) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in batch["rewards"]])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("trl") / "unbroken"
    train(output)
    return output


@pytest.mark.parametrize("name", ["ebpo", "group_norm", "raw_reward", "james_stein", "opo"])
def test_advantages_are_those_of_the_estimator(tmp_path, unbroken, name):
    output = unbroken
    if name != "ebpo":
        train(output := tmp_path / name, "--estimator", name)
    running = RunningEstimator(name, 2)
    for batch in batches(output):
        lengths = np.ones(8)  # OPO's are in the training alone
        found = running.step(rewards(batch), lengths=lengths).advantages.ravel()
        if name != "opo":
            assert batch["advantages"] == pytest.approx(found, abs=1e-6)
        assert batch["logged"] == pytest.approx(batch["advantages"], abs=1e-6)
        assert all(
            advantage == 0 for advantage, reward in zip(found, rewards(batch), strict=True) if math.isnan(reward)
        )
    assert any(map(any, (batch["advantages"] for batch in batches(output))))


@pytest.mark.parametrize("name", GOLDEN["advantages"])
def test_the_golden_rewards_give_the_golden_advantages(tmp_path, name):
    trl = {"num_generations": GOLDEN["group"], "per_device_train_batch_size": 12, "max_steps": 3, "save_steps": 9}
    train(tmp_path, "--estimator", name, "--golden", str(TABLE), **trl)
    for batch, golden in zip(batches(tmp_path), GOLDEN["advantages"][name], strict=True):
        assert batch["advantages"] == pytest.approx(golden, rel=1e-6, abs=1e-6)


def test_metrics_are_logged(unbroken):
    steps = [row for row in json.loads((unbroken / "log.json").read_text()) if "loss" in row]
    assert len(steps) == 6 and all(0 <= row["ebpo/shrinkage"] <= 1 for row in steps)
    assert steps[-1]["ebpo/prior_count"] == batches(unbroken)[-1]["prior"]["rewards"]["count"]


def test_score_weights_come_with_and_without_trls_own_log_probabilities(tmp_path):
    """With two iterations a batch TRL has made them, otherwise the mixin runs the model."""
    settings = ["--estimator", "ebpo.robust"]
    train(tmp_path / "own", *settings)
    train(tmp_path / "trls", *settings, num_iterations=2)
    one, other = batches(tmp_path / "own")[0], batches(tmp_path / "trls")[0]
    assert one["rewards"] == other["rewards"] and one["advantages"] == pytest.approx(other["advantages"], abs=1e-5)
    plain = RunningEstimator("ebpo.corrected", 2, {"normalise": "scale"}).step(rewards(one)).advantages
    assert one["advantages"] != pytest.approx(plain.ravel(), abs=1e-3)


@pytest.mark.parametrize("trl", [{}, {"num_iterations": 2}], ids=["", "two iterations"])
def test_killed_and_resumed_it_is_the_run_that_was_not_killed(tmp_path, unbroken, trl):
    if trl:
        train(unbroken := tmp_path / "unbroken", **trl)
    output = tmp_path / "killed"
    train(output, "--die_at", "5", status=-signal.SIGKILL, **trl)
    assert not (output / "weights-0.pt").exists()
    train(output, "--resume", **trl)
    assert torch.equal(torch.load(output / "weights-0.pt"), torch.load(unbroken / "weights-0.pt"))
    assert (output / "prior.json").read_text() == (unbroken / "prior.json").read_text()
    assert (output / "checkpoint-6" / "prior.json").exists()


def test_no_prompt_enters_the_prior_twice_where_a_generation_cycle_is_cut(tmp_path):
    """Two optimizer steps a generation; the checkpoint is between them, and a resumed TRL draws the cycle's prompts
    again."""
    cycle = {"steps_per_generation": 2, "gradient_accumulation_steps": 1, "save_steps": 3}
    train(tmp_path / "unbroken", **cycle)
    train(tmp_path / "cut", "--die_at", "4", status=-signal.SIGKILL, **cycle)
    saved = json.loads((tmp_path / "cut" / "checkpoint-3" / "prior.json").read_text())
    first, second = (batch["prior"] for batch in batches(tmp_path / "unbroken")[:2])
    assert saved["batches"] == first["batches"] == 1 and second["batches"] == 2
    train(tmp_path / "cut", "--resume", **cycle)
    assert batches(tmp_path / "cut")[0]["prior"]["batches"] == 2


def test_a_batch_that_was_trained_on_stays_in_the_prior_over_two_such_resumes(tmp_path):
    """After the first, TRL's cycles begin in the middle of the sampler's, so that the second comes between two of
    these."""
    cycle = {"steps_per_generation": 2, "gradient_accumulation_steps": 1, "save_steps": 1}
    train(tmp_path, "--die_at", "3", status=-signal.SIGKILL, **cycle)
    train(tmp_path, "--resume", "--die_at", "4", status=-signal.SIGKILL, **cycle)
    saved = [json.loads((tmp_path / f"checkpoint-{n}" / "prior.json").read_text())["batches"] for n in (2, 3, 4)]
    assert saved == [1, 1, 2]
    train(tmp_path, "--resume", **cycle)
    assert batches(tmp_path)[0]["prior"]["batches"] == 3


def test_a_checkpoint_whose_weights_trl_does_not_save_itself_has_its_prior_before_it_is_pushed(tmp_path, monkeypatch):
    """As with FSDP and sharded state dicts."""
    trainer, pushed = built(tmp_path), []
    trainer.is_fsdp_enabled, trainer.args.push_to_hub, trainer.args.save_only_model = True, True, True
    plugin = type("Plugin", (), {"state_dict_type": "SHARDED_STATE_DICT"})
    monkeypatch.setattr(type(trainer.accelerator.state), "fsdp_plugin", plugin, raising=False)
    monkeypatch.setattr(
        trainer, "_push_from_checkpoint", lambda folder: pushed.append(Path(folder, "prior.json").exists())
    )
    trainer._save_checkpoint(trainer.model, None)
    assert pushed == [True] and not list(tmp_path.glob("checkpoint-0/*.safetensors"))


def test_the_best_weights_are_exported_with_their_prior(tmp_path):
    best = {"load_best_model_at_end": True, "metric_for_best_model": "best", "greater_is_better": True}
    train(tmp_path, "--best_at", "2", eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=4, **best)
    priors = [(tmp_path / folder / "prior.json").read_text() for folder in ("export", "checkpoint-2", "checkpoint-6")]
    assert priors[0] == priors[1] != priors[2]


def test_two_processes_have_one_prior_and_each_its_own_advantages(tmp_path):
    output = tmp_path / "two"
    train(output, processes=2, per_device_train_batch_size=4)
    running = RunningEstimator("ebpo", 2)
    for mine, other in zip(batches(output, 0), batches(output, 1), strict=True):
        assert mine["prior"] == other["prior"] and mine["rewards"] == other["rewards"]
        found = running.step(rewards(mine)).advantages.ravel()
        assert mine["advantages"] + other["advantages"] == pytest.approx(found, abs=1e-6)


def test_evaluation_leaves_the_prior_alone(tmp_path, unbroken):
    output = tmp_path / "evaluated"
    train(output, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=4)
    assert batches(output)[-1]["prior"]["batches"] == 6
    assert any("eval_reward" in row for row in json.loads((output / "log.json").read_text()))


def built(tmp_path, estimator="ebpo", settings=None, tools=None, **trl):
    from datasets import Dataset
    from trl import GRPOConfig
    from trl.chat_template_utils import qwen3_chat_template

    config = GRPOConfig(
        output_dir=str(tmp_path),
        report_to="none",
        use_cpu=True,
        bf16=False,
        num_generations=2,
        per_device_train_batch_size=4,
        **trl,
    )
    prompts = Dataset.from_list([{"prompt": "bc"}, {"prompt": "de"}])
    reading = tokenizer()
    reading.chat_template = qwen3_chat_template if tools else None
    return Recorded(
        model(), has_an_a, config, prompts, None, reading, tools=tools, estimator=estimator, estimator_settings=settings
    )


def look_up(word: str) -> str:
    """Look a word up.

    Args:
        word: the word.
    """


@pytest.mark.parametrize(
    ("named", "wrong"),
    [
        ("gae", {"estimator": "gae"}),
        ("Did you mean ebpo", {"estimator": "ebop"}),
        ("presett", {"settings": {"presett": "paper"}}),
        ("tools do not allow", {"estimator": "ebpo.robust", "tools": [look_up]}),
        ("normalize_then_sum", {"multi_objective_aggregation": "normalize_then_sum"}),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path, named, wrong):
    with pytest.raises(UsageError, match=named):
        built(tmp_path, **wrong)


def test_trls_asynchronous_trainer_is_refused_before_it_is_made():
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    class Mixed(EBPOMixin, AsyncGRPOTrainer): ...

    with pytest.raises(UsageError, match="AsyncGRPOTrainer computes advantages in its worker"):
        Mixed()


def test_a_checkpoint_without_its_prior_or_with_anothers_is_refused(tmp_path, unbroken):
    for arguments, message in ((["--estimator", "opo"], "is now 'opo'"), ([], "no such prior file")):
        output = tmp_path / message[:4]
        subprocess.run(["cp", "-r", unbroken, output], check=True)
        if not arguments:
            (output / "checkpoint-6" / "prior.json").unlink()
        assert message in train(output, "--resume", *arguments, status=1, max_steps=8)
    train(output, "--resume", "--estimator_settings", '{"reset_prior": true}', max_steps=8)
