"""One rank with ZeRO-3 on the GPU sleeps, saves, resumes, trains and sleeps again: `python sleep_and_resume.py FOLDER`
writes to FOLDER/devices.json where Adam's moments are, asleep, before and after the resume."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
import ranks_that_resume as ranks
import torch
from openrlhf.utils.deepspeed.deepspeed_utils import offload_deepspeed_states, reload_deepspeed_states


def step(engine) -> None:
    for _ in range(engine.gradient_accumulation_steps()):
        batch = torch.ones(2, 8, dtype=next(engine.parameters()).dtype, device="cuda")
        engine.backward(engine(batch).float().pow(2).mean())
        engine.step()


def devices_asleep(engine) -> list[str]:
    offload_deepspeed_states(engine)
    states = engine.optimizer.optimizer.state.values()
    found = {state[name].device.type for state in states for name in ("exp_avg", "exp_avg_sq")}
    reload_deepspeed_states(engine)
    return sorted(found)


def main(folder: Path) -> None:
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29571")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    made = ranks.strategy(3)
    devices = {}
    for name in ("before", "after"):
        engine, _ = ranks.prepared(made, model, ranks.SAVED, "linear", 1.0)
        if name == "after":
            made.load_ckpt(engine, str(folder / "ckpt"))
        step(engine)
        devices[name] = devices_asleep(engine)
        if name == "before":
            made.save_ckpt(engine, str(folder / "ckpt"), "global_step1")
    (folder / "devices.json").write_text(json.dumps(devices))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
