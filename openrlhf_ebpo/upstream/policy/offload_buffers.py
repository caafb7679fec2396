"""Checkpoints without the host copies that DeepSpeed keeps of Adam's moments while a training sleeps
(--ds.enable_sleep, ZeRO-3).

DeepSpeed 0.19.6, runtime/zero/offload_states.py, `offload_adam_states` keeps them in the optimizer's state, as
`exp_avg_offload_buffer` and `exp_avg_sq_offload_buffer`, and makes new ones only where the keys are missing. So they
are saved (twice the moments' size), and torch's `load_state_dict` moves them to the parameter's device like any other
state. From then on every offload copies the moments onto the GPU: 8 bytes a parameter and rank stay there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

SUFFIX = "_offload_buffer"


@contextlib.contextmanager
def without_offload_buffers(model) -> Iterator[None]:
    """Inside, the state that the engine's optimizer gives to a checkpoint, or takes from one, has no such buffers. The
    ones in use stay."""
    optimizer = getattr(getattr(model, "optimizer", None), "optimizer", None)  # torch's, inside of ZeRO's
    if not hasattr(optimizer, "register_state_dict_post_hook"):
        yield
        return
    saving = optimizer.register_state_dict_post_hook(_without_buffers)
    loading = optimizer.register_load_state_dict_pre_hook(_without_buffers)
    try:
        yield
    finally:
        saving.remove()
        loading.remove()


def _without_buffers(_, state_dict: dict) -> dict:
    kept = {
        number: {name: value for name, value in state.items() if not name.endswith(SUFFIX)}
        for number, state in state_dict["state"].items()
    }
    return {**state_dict, "state": kept}
