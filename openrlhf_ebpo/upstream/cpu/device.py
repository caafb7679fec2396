"""Answer for the CPU what upstream asks of torch.cuda and DeepSpeed."""

from __future__ import annotations

import functools

import torch


def cpu_device(_original):
    return functools.partial(torch.device, "cpu")


def do_nothing(original):
    return functools.wraps(original)(lambda *_args, **_kwargs: None)


def cpu_mesh(original):
    @functools.wraps(original)
    def init_device_mesh(device_type, *args, **kwargs):
        return original("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return init_device_mesh


def torch_adam(original):
    @functools.wraps(original)
    def get_train_ds_config(*args, **kwargs):
        config = original(*args, **kwargs)
        optimizer = config.get("optimizer")
        if optimizer and optimizer["type"] == "AdamW":
            optimizer["params"]["torch_adam"] = True
        return config

    return get_train_ds_config


class CPUReplayBuffer:
    """Mixin over NaiveReplayBuffer: its samples stay where they are."""

    def __init__(self, *args, **kwargs):
        current_device = torch.cuda.current_device
        torch.cuda.current_device = lambda: 0  # upstream formats it into "cuda:…", a name that is then not used
        try:
            super().__init__(*args, **kwargs)
        finally:
            torch.cuda.current_device = current_device
        self.target_device = torch.device("cpu")
