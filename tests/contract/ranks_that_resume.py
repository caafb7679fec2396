"""Two ranks save with OpenRLHF's strategy and DeepSpeed, resume with other settings, and export a model with tied
weights.

python tests/contract/ranks_that_resume.py MODEL OUTPUT PORT RANK
"""

import copy
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

from openrlhf_ebpo.upstream.install import install

install()
import torch  # noqa: E402
from deepspeed.runtime.zero.offload_states import offload_adam_states, reload_adam_states  # noqa: E402
from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy  # noqa: E402

from openrlhf_ebpo.upstream.policy import checkpoint  # noqa: E402
from openrlhf_ebpo.upstream.policy.checkpoint import OFFLOAD_SUFFIX  # noqa: E402

STAGES = (0, 2, 3)
SAVED = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
OTHER = {"lr": 5e-3, "betas": (0.5, 0.6), "eps": 1e-4, "weight_decay": 0.7}


def space(**values) -> SimpleNamespace:
    return SimpleNamespace(**values)


def strategy(stage: int) -> DeepspeedStrategy:
    names = ("adam_offload", "use_universal_ckpt", "overlap_comm", "deepcompile")
    ds = space(
        param_dtype="bf16",
        zero_stage=stage,
        zpg=1,
        grad_accum_dtype=None,
        tensor_parallel_size=1,
        ring_attn_size=1,
        **dict.fromkeys(names, False),
    )
    args = space(
        ds=ds,
        train=space(dynamic_batch_enable=False),
        local_rank=-1,
        algo=space(advantage=space(estimator="ebpo")),
        ckpt=space(load_step=None, attempt="a"),
        actor=space(adam=space(**SAVED)),
    )
    made = DeepspeedStrategy(micro_train_batch_size=2, train_batch_size=4, zero_stage=stage, args=args)
    made.setup_distributed()
    return made


def prepared(made: DeepspeedStrategy, model, adam: dict, scheduler: str, max_norm: float):
    shape = {"lr_scheduler": scheduler, "lr_warmup_ratio": 0.5, "min_lr_ratio": 0.1, "scheduler_steps": 20}
    engine, _, schedule = made.prepare(
        (copy.deepcopy(model), {"optim": "adam", "muon": {}, "adam": adam, "max_norm": max_norm, **shape})
    )
    return engine, schedule


def step(engine) -> None:
    batch = torch.ones(2, 8, dtype=next(engine.parameters()).dtype)
    engine.backward(engine(batch).float().pow(2).mean())
    engine.step()


def numbers(engine, schedule) -> dict:
    group = engine.optimizer.param_groups[0]
    shown = {name: group[name] for name in ("initial_lr", "betas", "eps", "weight_decay")}
    return {
        **shown,
        "lr": schedule.get_last_lr()[0],
        "step": schedule.last_epoch,
        "max_norm": engine.gradient_clipping(),
    }


def buffers(engine) -> list[str]:
    """Names of DeepSpeed's host copies in the optimizer's state."""
    return sorted(
        {name for state in optimizer(engine).state.values() for name in state if name.endswith(OFFLOAD_SUFFIX)}
    )


def optimizer(engine) -> torch.optim.Optimizer:
    return engine.optimizer.optimizer


def sleep(engine) -> None:
    """Do to the optimizer what a ZeRO-3 engine's `offload_states` and `reload_states` do, on any device."""
    offload_adam_states(optimizer(engine), "cpu")
    reload_adam_states(optimizer(engine), "cpu")


def buffers_after(made: DeepspeedStrategy, engine, folder: Path) -> dict:
    """Host copies in use, after a save and load of ours, after a load of ours of what DeepSpeed alone saved, and after
    one of DeepSpeed's own."""
    sleep(engine)
    made.save_ckpt(engine, str(folder / "ours"), "global_step3")
    found = {"in use": buffers(engine)}
    engine.save_checkpoint(str(folder / "theirs"), "global_step3")
    made.load_ckpt(engine, str(folder / "theirs"), "global_step3")
    found["theirs, loaded by ours"] = buffers(engine)
    engine.load_checkpoint(str(folder / "theirs"), "global_step3")
    found["theirs"] = buffers(engine)
    engine.load_checkpoint(str(folder / "ours"), "global_step3")
    return {**found, "ours": buffers(engine)}


def export(made: DeepspeedStrategy, model: Path, output: Path) -> None:
    """Train three steps, export as a training does, and keep what the trained model says: logits.pt."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    engine, _ = prepared(made, AutoModelForCausalLM.from_pretrained(model), {**SAVED, "lr": 0.1}, "linear", 1.0)
    tokens = torch.arange(12).reshape(2, 6)
    for _ in range(3):
        engine.backward(engine(tokens, labels=tokens).loss)
        engine.step()
    logits = engine(tokens).logits.detach()
    made.save_model(engine, AutoTokenizer.from_pretrained(model), str(output))
    if made.is_rank_0():
        torch.save(logits, output / "logits.pt")


def main(tied: Path, output: Path, port: str, number: str) -> None:
    """Save, resume and export at each stage next to OUTPUT, which gets {stage: what was found}."""
    folder, outcomes = output.parent, {}
    where = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update(where)
    wrote, of_all = [], checkpoint.gather_from_all_ranks
    checkpoint.gather_from_all_ranks = lambda files: [wrote.extend(files), of_all(files)][1]
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    for stage in STAGES:
        made = strategy(stage)
        engine, schedule = prepared(made, model, SAVED, "cosine_with_min_lr", 1.0)
        for _ in range(3):
            step(engine)
        wrote.clear()
        made.save_ckpt(engine, str(folder / str(stage)), "global_step3")
        saved = numbers(engine, schedule)
        slept = buffers_after(made, engine, folder / "slept") if stage == 3 else None
        engine, schedule = prepared(made, model, OTHER, "linear", 9.0)
        made.load_ckpt(engine, str(folder / str(stage)))
        found = {"wrote": [*wrote], "saved": saved, "loaded": numbers(engine, schedule), "buffers": slept}
        outcomes[stage] = found
        export(made, tied, folder / f"exported-{stage}")
    output.write_text(json.dumps(outcomes))
    os._exit(0)  # gloo's threads now and then end an interpreter's own end with SIGABRT


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
