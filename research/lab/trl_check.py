"""Eight steps with EBPOTrainer that are killed after the fifth and resumed, compared with a float64 reference of their
own.

The reference is the tests': plain Python that goes through all batches at every step (tests/reference_ebpo.py).
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import append_json_line, read_json_lines

STEPS, SAVED_EVERY, KILLED_AT = 8, 4, 5
TOLERANCE = 1e-5  # of float32 advantages
SECONDS = 600  # for a process of a few steps
TESTS = Path(__file__).parents[2] / "tests"


def check(estimator: str, folder: Path, tasks: list[dict], reward: Path, sizes, work: Path) -> str:
    """Train, kill, resume and compare.

    Returns:
        A line for the report.

    Raises:
        ReportedError: the resumed training differs from the reference, or does not end.
    """
    output = work / f"check-{estimator}"
    shutil.rmtree(output, ignore_errors=True)
    arguments = (estimator, folder, tasks, reward, sizes, output)
    if (status := run_in_process(*arguments, KILLED_AT)) != -signal.SIGKILL:
        raise ReportedError(f"{estimator}: the training to be killed at step {KILLED_AT} ended with status {status}")
    if (status := run_in_process(*arguments, 0)) != 0:
        raise ReportedError(f"{estimator}: the resumed training ended with status {status}; its error is above")
    batches = {row["step"]: row for row in read_json_lines(output / "batches.jsonl")}
    if sorted(batches) != [*range(STEPS)]:
        raise ReportedError(f"{estimator}: of {STEPS} steps it recorded {sorted(batches)}")
    worst, prior = differences(estimator, sizes.group, [batches[step] for step in range(STEPS)], output)
    if max(worst, prior) > TOLERANCE:
        raise ReportedError(f"{estimator}: advantages differ by {worst:.2g} and the prior by {prior:.2g}")
    return f"{estimator}: killed at step {KILLED_AT}, resumed; advantages within {worst:.1e}, prior within {prior:.1e}"


def run_in_process(*arguments) -> int:
    process = multiprocessing.get_context("spawn").Process(target=record_training, args=arguments)
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        raise ReportedError(f"{arguments[0]}: {STEPS} steps took over {SECONDS} s")
    return process.exitcode


def record_training(estimator, folder, tasks, reward, sizes, output: Path, die_at: int) -> None:
    from transformers import TrainerCallback, set_seed

    from lab import trl_training

    class Death(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    set_seed(0)
    model, tokenizer = trl_training.load_model(folder)
    settings = {"output_dir": str(output), "save_steps": SAVED_EVERY, "seed": 0}
    loaded = trl_training.load_reward(reward)
    trainer, _ = trl_training.build_trainer(estimator, model, tokenizer, tasks, loaded, sizes, **settings)
    trainer.add_callback(Death())
    step = trainer.running.step

    def recorded(rewards, lengths=None, score_weights=None):
        weights = score_weights()
        found = step(rewards, lengths, lambda: weights)
        row = {"step": trainer.state.global_step, "rewards": rewards.tolist(), "weights": weights.tolist()}
        append_json_line(output / "batches.jsonl", row | {"advantages": found.advantages.ravel().tolist()})
        return found

    trainer.running.step = recorded
    trainer.train(resume_from_checkpoint=None if die_at else True)


def differences(estimator: str, group: int, batches: list[dict], output: Path) -> tuple[float, float]:
    """Return the largest difference of an advantage, and of what the last prior says (mean, σ² and τ²), to the
    reference's."""
    sys.path.append(str(TESTS))
    from reference_ebpo import Reference

    from openrlhf_ebpo.integrations.running import PRIOR, RunningEstimator

    running = RunningEstimator(estimator, group)
    reference, worst = Reference(running.config), 0.0
    for batch in batches:
        rewards, weights = (np.reshape(batch[name], (-1, group)) for name in ("rewards", "weights"))
        valid = np.isfinite(rewards)
        advantages = reference.step(rewards.tolist(), valid.tolist(), weights.tolist(), [None] * len(rewards))[2]
        worst = max(worst, float(np.abs(np.ravel(advantages) - batch["advantages"]).max()))
    (last,) = output.glob(f"checkpoint-{STEPS}/{PRIOR}")
    running.restore(last.parent)
    history, parts = running.estimator.history, running.estimator.parts
    prior, wanted, variant = history.read(running.state, None), reference.read(), reference.variant
    known = [
        wanted.mean,
        wanted.pooled if variant["within_variance"] == "pooled" else wanted.within,
        wanted.raw if variant["between_variance"] == "raw" else wanted.corrected,
    ]
    found = [history.mean(prior), parts["within_variance"](prior), parts["between_variance"](prior)]
    return worst, float(max(np.abs(np.subtract(known, found))))
