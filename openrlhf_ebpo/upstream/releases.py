"""The releases of OpenRLHF that this project was tested with, and the sources that its rows are written for.

A release is accepted by its sources, not by its number. One whose sources are all below is added by its number in
TESTED; where a source differs and the row fits it all the same, its fingerprint is added too (docs/develop.md). A
source of another package that differs is a warning: OpenRLHF pins their versions, and not everybody keeps to the pins.
"""

from __future__ import annotations

TESTED = ("0.11.2",)  # by tests/contract/test_releases.py
RECOMMENDED = "0.11.2"  # what our pins install, and all other tests run with

# With a GPU. vLLM brings torch, for which flash-attn is then compiled: it has no wheel for this torch, and its build
# imports torch and wheel. docs/gpus.md#install says the rest, and a test holds the two against each other.
FLASH_ATTN_INSTALL = "MAX_JOBS=8 pip install --no-build-isolation flash-attn==2.8.3"
GPU_INSTALL = f"""  pip install vllm==0.29.0 wheel
  {FLASH_ATTN_INSTALL}
  pip install 'openrlhf[vllm]=={RECOMMENDED}'
or, without flash-attn:
  pip install --no-deps -r requirements/gpu-torch213.txt"""

# torch -> what goes with it in place of the versions that OpenRLHF pins (requirements/gpu-torch211.txt)
VERSIONS_BY_TORCH = {"2.11.0": {"transformers": "5.17.0", "vllm": "0.24.0"}}

# What a row replaces -> fingerprints of the sources that it fits, the newest last: first 12 hex digits of the SHA-256.
SOURCES = {
    "openrlhf.trainer.ppo_utils.experience_maker.RemoteExperienceMaker": ("351a52599ac6",),
    "openrlhf.trainer.ppo_trainer.PPOTrainer": ("5d13ed090ca7",),
    "openrlhf.trainer.ppo_trainer_async.TrainingActor": ("49680a82ee4a",),
    "openrlhf.trainer.ppo_trainer_async.GenerateSamplesActor": ("6eacb9826853",),
    "openrlhf.trainer.ppo_trainer_async.PPOTrainerAsync": ("576117b63be4",),
    "openrlhf.trainer.ppo_utils.samples_generator.SamplesGenerator": ("11458b2545a7",),
    "openrlhf.datasets.prompts_dataset.PromptDataset": ("c67a76171e1f",),
    "openrlhf.utils.utils.get_tokenizer": ("d6c83069a3e4",),
    "openrlhf.utils.deepspeed.deepspeed.DeepspeedStrategy.setup_dataloader": ("f4b22fa08dc3",),
    "openrlhf.utils.agent.SingleTurnAgentExecutor": ("e06d107899c7",),
    "openrlhf.utils.agent.MultiTurnAgentExecutor": ("251641a99dd5",),
    "openrlhf.trainer.ray.vllm_engine.RolloutRayActor": ("eb61743a7634",),
    "openrlhf.trainer.ray.ppo_actor.PolicyModelActor": ("92c64969980b",),
    "openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer": ("afd1137caf53",),
    "openrlhf.trainer.ray.ppo_critic.CriticPPOTrainer": ("e67a52dc27a2",),
    "openrlhf.trainer.sft_trainer.SFTTrainer": ("bc0c94cc5e9c",),
    "openrlhf.utils.loss_utils.get_loss_batch_info": ("5ff6166e43e6",),
    "openrlhf.utils.loss_utils._optimizer_step_loss_norm": ("ebf549cde744",),
    "openrlhf.utils.deepspeed.deepspeed.DeepspeedStrategy.save_ckpt": ("7a036f572da7",),
    "openrlhf.trainer.ray.launcher.RayActorGroup.async_init_model_from_pretrained": ("3c293c3e9178",),
    "openrlhf.utils.deepspeed.deepspeed.DeepspeedStrategy.load_ckpt": ("6ff8e416fcea",),
    "openrlhf.utils.deepspeed.deepspeed_utils.get_train_ds_config": ("2e79fbb11ad6",),
    "openrlhf.trainer.ppo_utils.replay_buffer.NaiveReplayBuffer": ("f1e8190d186c",),
    "openrlhf.utils.distributed_util.stateless_init_process_group": ("0f4de7e6719a",),
    # vLLM 0.24.0, 0.29.0; transformers 5.15.0 and 5.17.0; DeepSpeed 0.19.6
    "vllm.v1.engine.core.EngineCoreProc.run_engine_core": ("cb0143ccd67e", "c3b7b89ad9ca"),
    "vllm.engine.arg_utils.EngineArgs.create_engine_config": ("2ebda074c7d4", "fc02f9982970"),
    "vllm.platforms.cpu.CpuPlatform.import_kernels": ("5658cfe0d751", "fa3b63b34349"),
    "transformers.dynamic_module_utils.resolve_trust_remote_code": ("6c32b9b62419",),
    "transformers.dynamic_module_utils.get_class_in_module": ("49a6065d555f",),
    "deepspeed.comm.torch.build_shm_op": ("5ee7daeb8dd5",),
}
