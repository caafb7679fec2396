"""SEAMS of a machine without CUDA, in addition to those that every machine needs."""

from __future__ import annotations

from openrlhf_ebpo.upstream.replacements import Seam

ACCELERATOR = "https://github.com/OpenRLHF/OpenRLHF/pull/1301"  # torch.accelerator in place of torch.cuda

SEAMS = (
    Seam(
        "torch.cuda",
        "current_device",
        "openrlhf_ebpo.upstream.cpu.device:cpu_device",
        process="every",
        kind="cpu",
        why="used as the device that tensors go to",
        until="upstream asks torch.accelerator",
        link=ACCELERATOR,
    ),
    *(
        Seam(
            "torch.cuda",
            name,
            "openrlhf_ebpo.upstream.cpu.device:do_nothing",
            process="every",
            kind="cpu",
            why="raises without a driver; there is nothing to select, to wait for, or to hand to NCCL",
            until="upstream asks torch.accelerator",
            link=ACCELERATOR,
        )
        for name in ("set_device", "synchronize", "current_stream")
    ),
    Seam(
        "openrlhf.utils.deepspeed.deepspeed",
        "init_device_mesh",
        "openrlhf_ebpo.upstream.cpu.device:cpu_mesh",
        process="policy",
        kind="cpu",
        why="setup_distributed builds its mesh for 'cuda'",
        until="upstream asks torch.accelerator",
        link=ACCELERATOR,
    ),
    Seam(
        "openrlhf.utils.deepspeed.deepspeed_utils",
        "get_train_ds_config",
        "openrlhf_ebpo.upstream.cpu.device:torch_adam",
        process="policy",
        kind="cpu",
        why="DeepSpeed's own Adam is compiled on first use, which takes a C++ compiler and half a minute",
        until="DeepSpeed ships a built CPU Adam",
    ),
    Seam(
        "deepspeed.comm.torch",
        "build_shm_op",
        "openrlhf_ebpo.upstream.cpu.device:do_nothing",
        process="policy",
        kind="cpu",
        why="DeepSpeed compiles its own all-reduce when a process group starts, half a minute in a cache that all "
        "environments of a user share; a process killed meanwhile leaves a lock on which every later start waits "
        "forever. Without it, gloo does the same",
        until="DeepSpeed ships it built, or asks before it compiles",
    ),
    Seam(
        "openrlhf.trainer.ppo_utils.replay_buffer",
        "NaiveReplayBuffer",
        "openrlhf_ebpo.upstream.cpu.device:CPUReplayBuffer",
        process="policy",
        kind="cpu",
        why="builds torch.device(f'cuda:{…}') from the current device",
        until="upstream asks torch.accelerator",
    ),
    Seam(
        "openrlhf.utils.distributed_util",
        "stateless_init_process_group",
        "openrlhf_ebpo.upstream.cpu.gloo_sync:gloo_group",
        process="policy",
        kind="cpu",
        why="weights travel to vLLM over NCCL",
        until="upstream honours --vllm.sync_backend gloo here",
    ),
    Seam(
        "vllm.platforms.cpu",
        "CpuPlatform.import_kernels",
        "openrlhf_ebpo.upstream.cpu.native:loud_kernels",
        process="every",
        kind="cpu",
        why="vLLM only warns where libnuma.so.1 is missing, and the engine dies later of a missing operator",
        until="vLLM raises",
        link="https://github.com/vllm-project/vllm/issues/33675",
    ),
    Seam(
        "openrlhf.trainer.ray.vllm_engine",
        "RolloutRayActor",
        "openrlhf_ebpo.upstream.cpu.gloo_sync:CPURolloutActor",
        process="rollout",
        kind="cpu",
        why="vLLM's CPU backend repacks weights at load, so one tensor at a time cannot be loaded; its worker is a "
        "process that Ray's hook does not reach; sleep mode and a share of GPU memory mean nothing to it",
        until="vLLM's CPU backend can update single weights",
    ),
)
