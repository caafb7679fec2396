"""The trainings of the check: the quickstart's model and tasks, EBPO, and a way to put trainer and vLLM on GPUs
each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.quickstart.stages import Training, training_flags

STEPS = 20
SAVE_EVERY = 5
KILL_AFTER = 7  # steps: past the first checkpoint, before the second
COLOCATED = {"train.colocate_all": True}
APART = {"train.colocate_all": None}
SLEEP = {"vllm.enable_sleep": True, "ds.enable_sleep": True}


@dataclass(frozen=True)
class Mode:
    """A way to train.

    Attributes:
        flags: over the quickstart's; None takes one away.
        seconds: an estimate for one H100-class GPU.
        gpus: that Ray must have.
        killed: in the middle, and resumed.
        largest_kl: between trainer and vLLM, per token, in any step; None where rollouts are older than the weights.
    """

    what: str
    flags: dict
    seconds: int
    gpus: int = 1
    killed: bool = True
    largest_kl: float | None = 0.05  # bfloat16 in both


MODES = {
    "colocate": Mode(
        "trainer and engine on one GPU that sleep in turn, weights over CUDA IPC; ZeRO 3",
        {**COLOCATED, **SLEEP, "ds.zero_stage": 3},
        seconds=160,  # with the model's warm start
    ),
    "separate": Mode(
        "trainer and engine apart, weights over NCCL; ZeRO 2", {**APART, "ds.zero_stage": 2}, seconds=100, gpus=2
    ),
    "async": Mode(
        "--train.async_enable: a batch is generated while another is learnt, weights over NCCL; ZeRO 2",
        {**APART, "train.async_enable": True, "ds.zero_stage": 2},
        seconds=100,
        gpus=2,
        largest_kl=None,
    ),
    "lora": Mode(
        "LoRA of rank 4 on one GPU, merged weights over CUDA IPC; ZeRO 2",
        {**COLOCATED, "ds.lora.rank": 4, "ds.zero_stage": 2, "actor.lr_scheduler": "constant"},
        seconds=55,
        killed=False,
    ),
}


def flags_of(mode: str, model: Path, arm: Path) -> dict:
    """model: the folder with the quickstart's data and warm start."""
    own = {
        "algo.advantage.is_correction_level": "token",  # asks vLLM for its log-probabilities
        "ckpt.save_steps": SAVE_EVERY,
        "vllm.gpu_memory_utilization": 0.3,
        "vllm.enforce_eager": True,
    }
    return training_flags(Training(model, arm, "ebpo", STEPS)) | own | MODES[mode].flags
