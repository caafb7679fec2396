"""What became of every flag of OpenRLHF's train_ppo_ray up to 0.10.1, and of two up to 0.11.1: the one table that `old_flags` works by.

Read off the published packages 0.9.3, 0.10.1 and 0.11.2; tests/data/openrlhf_flags/ holds their flag lists.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Row(NamedTuple):
    """One old flag.

    Attributes:
        new: the flags of 0.11.2 that it sets.
        note: what a reader must know: why it is dropped or gone, how it is combined.
        kind: "to": `new` take its values as they are; "set": it stood alone, `value` is what it meant;
            "combined": several old flags decide together (code in `old_flags`); "dropped": leaving it out changes
            nothing; "gone": what it did no longer exists, the command is refused.
        takes: number of values, where `old_flags` must know it.
        value: of kind "set".
    """

    new: tuple[str, ...] = ()
    note: str = ""
    kind: Literal["to", "set", "combined", "dropped", "gone"] = "to"
    takes: int = 0
    value: str = ""


def to(*new: str, note: str = "") -> Row:
    return Row(new, note)


def dropped(note: str, takes: int = 0) -> Row:
    return Row((), note, "dropped", takes)


def gone(note: str) -> Row:
    return Row((), note, "gone")


def combined(*new: str, note: str, takes: int = 1) -> Row:
    return Row(new, note, "combined", takes)


NO_PTX = "training on pretraining data beside the prompts (PPO-ptx) left OpenRLHF in 0.7; leave it out"

TABLE: dict[str, Row] = {
    # placement
    "--ref_num_nodes": to("--ref.num_nodes"),
    "--ref_num_gpus_per_node": to("--ref.num_gpus_per_node"),
    "--reward_num_nodes": to("--reward.num_nodes"),
    "--reward_num_gpus_per_node": to("--reward.num_gpus_per_node"),
    "--actor_num_nodes": to("--actor.num_nodes"),
    "--actor_num_gpus_per_node": to("--actor.num_gpus_per_node"),
    "--critic_num_nodes": to("--critic.num_nodes"),
    "--critic_num_gpus_per_node": to("--critic.num_gpus_per_node"),
    "--colocate_actor_ref": to("--train.colocate_actor_ref"),
    "--colocate_critic_reward": to("--train.colocate_critic_reward"),
    "--colocate_all_models": to("--train.colocate_all"),
    "--ref_reward_offload": to("--ref.offload", "--reward.offload", note="was one switch for both models"),
    # vLLM and rollouts
    "--vllm_num_engines": to("--vllm.num_engines"),
    "--vllm_tensor_parallel_size": to("--vllm.tensor_parallel_size"),
    "--vllm_sync_backend": to("--vllm.sync_backend"),
    "--vllm_sync_with_ray": to("--vllm.sync_with_ray"),
    "--enable_prefix_caching": to("--vllm.enable_prefix_caching"),
    "--enforce_eager": to("--vllm.enforce_eager"),
    "--vllm_enable_sleep": to("--vllm.enable_sleep"),
    "--vllm_gpu_memory_utilization": to("--vllm.gpu_memory_utilization"),
    "--vllm_generate_batch_size": to("--rollout.vllm_generate_batch_size"),
    "--rollout_batch_size": to("--rollout.batch_size"),
    "--micro_rollout_batch_size": to("--rollout.micro_batch_size", note="default 8 up to 0.9.x, 1 since 0.10"),
    "--rollout_max_tokens_per_gpu": to("--rollout.max_tokens_per_gpu"),
    "--n_samples_per_prompt": to("--rollout.n_samples_per_prompt"),
    "--temperature": to("--rollout.temperature"),
    "--top_p": to("--rollout.top_p"),
    "--prompt_max_len": combined(
        "--data.max_len", note="up to 0.9.7; --data.max_len is its sum with --generate_max_len (each 1024 if not given)"
    ),
    "--generate_max_len": combined("--rollout.max_new_tokens", note="up to 0.9.7; counts towards --data.max_len too"),
    "--max_len": combined(
        "--data.max_len", note="dropped beside --prompt_max_len or --generate_max_len, which decided there"
    ),
    "--max_new_tokens": to("--rollout.max_new_tokens"),
    "--async_train": to("--train.async_enable"),
    "--async_queue_size": to("--train.async_queue_size"),
    "--partial_rollout": to("--train.partial_rollout_enable"),
    "--agent_func_path": to("--train.agent_func_path"),
    # correction for the difference between vLLM's and the actor's probabilities
    "--enable_vllm_is_correction": combined(
        "--algo.advantage.is_correction_level", note="with the level and mode of the scheme", takes=0
    ),
    "--vllm_is_correction_type": combined(
        "--algo.advantage.is_correction_mode",
        note="tis: token, clip; icepop: token, mask; seq-mask-tis (mis in 0.9): seq, mask",
    ),
    "--vllm_is_truncated_threshold": to("--algo.advantage.is_correction_threshold"),
    "--vllm_enable_is_correction": combined(
        "--algo.advantage.is_correction_level",
        note="of no release; OpenRLHF's DAPO scripts of 0.9 and 0.10 have it for --enable_vllm_is_correction",
        takes=0,
    ),
    "--algo.advantage.is_correction_enable": combined(
        "--algo.advantage.is_correction_level", note="0.10.2 to 0.11.1: as --enable_vllm_is_correction", takes=0
    ),
    "--algo.advantage.is_correction_type": combined(
        "--algo.advantage.is_correction_mode", note="0.10.2 to 0.11.1: as --vllm_is_correction_type"
    ),
    # checkpoints, evaluation, logs
    "--save_path": to("--ckpt.output_dir"),
    "--ckpt_path": to("--ckpt.path"),
    "--save_steps": to("--ckpt.save_steps"),
    "--save_hf_ckpt": to("--ckpt.save_hf"),
    "--disable_ds_ckpt": to("--ckpt.disable_ds"),
    "--max_ckpt_num": to("--ckpt.max_num"),
    "--max_ckpt_mem": to("--ckpt.max_mem", note="GB in both; default 1e8 up to 0.9.x, now no limit"),
    "--load_checkpoint": to("--ckpt.load_enable"),
    "--best_metric_key": to("--ckpt.best_metric_key"),
    "--use_ds_universal_ckpt": to("--ds.use_universal_ckpt"),
    "--save_value_network": to("--critic.save_value_network"),
    "--eval_steps": to("--eval.steps"),
    "--eval_dataset": to("--eval.dataset"),
    "--eval_split": to("--eval.split"),
    "--eval_temperature": to("--eval.temperature"),
    "--eval_n_samples_per_prompt": to("--eval.n_samples_per_prompt"),
    "--logging_steps": to("--logger.logging_steps"),
    "--use_wandb": to("--logger.wandb.key"),
    "--wandb_org": to("--logger.wandb.org"),
    "--wandb_group": to("--logger.wandb.group"),
    "--wandb_project": to("--logger.wandb.project"),
    "--wandb_run_name": to("--logger.wandb.run_name"),
    "--use_tensorboard": to("--logger.tensorboard_dir"),
    # DeepSpeed and models
    "--local_rank": to("--local_rank"),
    "--use_ms": to("--use_ms"),
    "--pretrain": to("--actor.model_name_or_path"),
    "--reward_pretrain": to("--reward.model_name_or_path"),
    "--critic_pretrain": to("--critic.model_name_or_path"),
    "--value_head_prefix": to("--ds.value_head_prefix"),
    "--freeze_visual_encoder": to("--actor.freeze_visual_encoder"),
    "--zero_stage": to("--ds.zero_stage"),
    "--zpg": to("--ds.zpg"),
    "--deepcompile": to("--ds.deepcompile"),
    "--param_dtype": to("--ds.param_dtype"),
    "--adam_offload": to("--ds.adam_offload"),
    "--attn_implementation": to("--ds.attn_implementation"),
    "--use_liger_kernel": to("--ds.use_liger_kernel"),
    "--grad_accum_dtype": to("--ds.grad_accum_dtype"),
    "--overlap_comm": to("--ds.overlap_comm"),
    "--deepspeed_enable_sleep": to("--ds.enable_sleep"),
    "--ds_tensor_parallel_size": to("--ds.tensor_parallel_size"),
    "--packing_samples": to("--ds.packing_samples"),
    "--ring_attn_size": to("--ds.ring_attn_size"),
    "--ring_head_stride": to("--ds.ring_attn_head_stride"),
    "--load_in_4bit": to("--ds.load_in_4bit"),
    "--lora_rank": to("--ds.lora.rank"),
    "--lora_alpha": to("--ds.lora.alpha"),
    "--lora_dropout": to("--ds.lora.dropout"),
    "--target_modules": to("--ds.lora.target_modules"),
    "--gradient_checkpointing": to("--actor.gradient_checkpointing_enable", note="the critic follows it, as before"),
    "--gradient_checkpointing_use_reentrant": to("--actor.gradient_checkpointing_reentrant"),
    # training
    "--num_episodes": to("--train.num_episodes"),
    "--max_epochs": to("--train.max_epochs"),
    "--train_batch_size": to("--train.batch_size"),
    "--micro_train_batch_size": to("--train.micro_batch_size", note="default 4 up to 0.9.x, 1 since 0.10"),
    "--use_dynamic_batch": to("--train.dynamic_batch_enable"),
    "--train_max_tokens_per_gpu": to("--train.max_tokens_per_gpu"),
    "--seed": to("--train.seed"),
    "--full_determinism": to("--train.full_determinism_enable"),
    "--enable_ema": to("--train.enable_ema"),
    "--ema_beta": to("--train.ema_beta"),
    "--actor_learning_rate": to("--actor.adam.lr"),
    "--critic_learning_rate": to("--critic.adam.lr"),
    "--lr_warmup_ratio": to("--actor.lr_warmup_ratio", "--critic.lr_warmup_ratio"),
    "--lr_scheduler": to("--actor.lr_scheduler", "--critic.lr_scheduler"),
    "--adam_betas": to("--actor.adam.betas", "--critic.adam.betas"),
    "--l2": to("--actor.adam.weight_decay", "--critic.adam.weight_decay"),
    "--max_norm": to("--actor.max_norm", "--critic.max_norm"),
    "--eps_clip": to("--actor.eps_clip"),
    "--eps_clip_low_high": to("--actor.eps_clip_low_high"),
    "--dual_clip": to("--actor.dual_clip"),
    "--policy_loss_type": to("--actor.policy_loss_type"),
    "--aux_loss_coef": to("--actor.aux_loss_coef", note="the critic follows it, as before"),
    "--entropy_loss_coef": to("--actor.entropy_coef"),
    "--value_clip": to("--critic.value_clip"),
    "--freezing_actor_steps": to("--critic.freezing_steps", note="freezes the actor, as before"),
    # advantages, KL, rewards
    "--advantage_estimator": to("--advantage_estimator", note="or --algo.advantage.estimator; `ebpo` is one more"),
    "--no_advantage_std_norm": to("--algo.advantage.no_std_norm"),
    "--lambd": to("--algo.advantage.lambd"),
    "--gamma": to("--algo.advantage.gamma"),
    "--dynamic_filtering": to("--algo.dynamic_filtering_enable"),
    "--dynamic_filtering_reward_range": to("--algo.dynamic_filtering_range"),
    "--use_kl_loss": to("--algo.kl.use_loss"),
    "--kl_estimator": to("--algo.kl.estimator"),
    "--init_kl_coef": to("--algo.kl.init_coef"),
    "--kl_target": to("--algo.kl.target"),
    "--kl_horizon": to("--algo.kl.horizon"),
    "--remote_rm_url": to("--reward.remote_url"),
    "--normalize_reward": to("--reward.normalize_enable"),
    "--reward_clip_range": to("--reward.clip_range", note="under ebpo a range applies only where it is given"),
    "--overlong_buffer_len": to("--reward.overlong_buffer_len"),
    "--overlong_penalty_factor": to("--reward.overlong_penalty_factor"),
    "--stop_properly_penalty_coef": to("--reward.stop_properly_penalty_coef"),
    # data
    "--prompt_data": to("--data.prompt_dataset"),
    "--prompt_data_probs": to("--data.prompt_probs"),
    "--prompt_split": to("--data.prompt_split"),
    "--input_key": to("--data.input_key"),
    "--label_key": to("--data.label_key"),
    "--image_key": to("--data.image_key"),
    "--input_template": to("--data.input_template"),
    "--apply_chat_template": to("--data.apply_chat_template"),
    "--max_samples": to("--data.max_samples"),
    "--max_images_per_prompt": to("--data.max_images_per_prompt"),
    "--disable_fast_tokenizer": to("--data.disable_fast_tokenizer"),
    "--dataloader_num_workers": to("--data.dataloader_num_workers"),
    # read by nothing any more, in 0.9.3 and 0.10.1 already
    "--ptx_coef": dropped("no code of 0.9.3 or 0.10.1 reads it", takes=1),
    "--perf": dropped("no code of 0.9.3 or 0.10.1 reads it"),
    "--actor_init_on_gpu": dropped("no code of 0.9.3 or 0.10.1 reads it"),
    # of releases before 0.9.3 only
    "--bf16": Row(("--ds.param_dtype",), "up to 0.8; the default now", "set", value="bf16"),
    "--flash_attn": Row(("--ds.attn_implementation",), "up to 0.7", "set", value="flash_attention_2"),
    "--use_kl_estimator_k3": Row(("--algo.kl.estimator",), "up to 0.5", "set", value="k3"),
    "--torch_compile": dropped("it only changed the speed; --ds.deepcompile is its like"),
    "--pretrain_data": gone(NO_PTX),
    "--pretrain_data_probs": gone(NO_PTX),
    "--pretrain_split": gone(NO_PTX),
}
