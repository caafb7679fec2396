"""Models that bring code of their own: it notes the processes that have imported it."""

import json
from pathlib import Path

CODE = """
import os
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
with open({marker!r}, "a") as file:
    print(os.getpid(), file=file)
class OwnConfig(Qwen3Config):
    model_type = "own"
class OwnForCausalLM(Qwen3ForCausalLM):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
WHOLE = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def bring_code(folder: Path, config: dict | None = None, tokenizer: dict | None = None) -> Path:
    """Give the model in `folder` a module `own`, and these entries; returns the file that exists once it has run."""
    marker = folder.parent / f"{folder.name} has run code"
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    edit(folder / "config.json", **(config or {}))
    edit(folder / "tokenizer_config.json", **(tokenizer or {}))
    return marker


def own_model(folder: Path) -> Path:
    """A tiny model that transformers does not know: configuration, weights and tokenizer; returns as `bring_code`."""
    from openrlhf_ebpo.quickstart import tiny_model

    tiny_model.build(folder, ["0123456789+= \n"], hidden_size=32, intermediate_size=64)
    return bring_code(folder, {"model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": WHOLE})
