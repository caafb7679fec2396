"""The trainings of these tests: what those of scripts/gpu_check.sh do not have. Flags of the command, on one GPU."""

from gpu.modes import SLEEP

COMMON = (
    *("--train.colocate_all", "--vllm.gpu_memory_utilization", "0.3", "--vllm.enforce_eager"),
    *("--actor.adam.lr", "1e-3", "--algo.advantage.is_correction_level", "token"),
)
DYNAMIC_CLIP_COV = (
    *("--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", "256", "--ds.zero_stage", "3"),
    *("--actor.policy_loss_type", "clip_cov"),
)
ZERO_3_SLEEP_KL_COV = (
    *(f"--{flag}" for flag in SLEEP),
    *("--ds.zero_stage", "3", "--actor.policy_loss_type", "kl_cov", "--ckpt.save_steps", "5", "--ckpt.load_enable"),
)
LORA_ZERO_3 = (
    "--ds.zero_stage",
    "3",
    "--ds.lora.rank",
    "4",
    "--actor.lr_scheduler",
    "constant",
    "--actor.adam.lr",
    "1e-2",
)
TRAININGS = {
    "dynamic_clip_cov": DYNAMIC_CLIP_COV,
    "zero_3_sleep_kl_cov": ZERO_3_SLEEP_KL_COV,
    "lora_zero_3": LORA_ZERO_3,
}
