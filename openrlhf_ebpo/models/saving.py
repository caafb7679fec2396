"""Save a model's configuration and tokenizer before a training, as OpenRLHF's `save_model` will at its end: what
transformers refuses to write there would lose the trained weights."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.errors import raise_problems
from openrlhf_ebpo.extension import models_trusted
from openrlhf_ebpo.models.hub_models import local_folder

GENERATION = "generation_config.json"
MAX_CAUSE_CHARS = 300


@dataclass(frozen=True)
class ModelSaving:
    """How a training saves its model. flag: names it. has_adapter: with LoRA no generation_config.json is written."""

    flag: str
    model: str
    has_adapter: bool
    use_fast_tokenizer: bool

    @classmethod
    def from_args(cls, args, flag: str) -> ModelSaving:
        """From the nested arguments of `train` or `sft`."""
        section = getattr(args, flag.partition(".")[0])
        return cls(flag, section.model_name_or_path, args.ds.lora.rank > 0, not args.data.disable_fast_tokenizer)

    def check(self) -> None:
        """Save all but the weights into a temporary folder. A model that is not on this machine is not checked.

        Raises:
            UsageError: something cannot be loaded or saved; one file a line.
        """
        folder = local_folder(self.model)
        if folder is None:
            return
        with tempfile.TemporaryDirectory() as target:
            raise_problems([f"--{self.flag} {self.model}: {each}" for each in self._problems(str(folder), target)])

    def _problems(self, folder: str, target: str) -> Iterator[str]:
        from openrlhf.utils.utils import get_tokenizer
        from transformers import AutoConfig

        loaders: dict[str, Callable] = {
            "config.json": lambda: AutoConfig.from_pretrained(folder, trust_remote_code=models_trusted()),
            "tokenizer_config.json or another file of the tokenizer": lambda: get_tokenizer(
                folder, None, use_fast=self.use_fast_tokenizer
            ),
        }
        if not self.has_adapter:
            file = GENERATION if (Path(folder) / GENERATION).exists() else "config.json"
            loaders[file if file == GENERATION else f"{file} (settings of generation)"] = lambda: _generation(folder)
        for file, load in loaders.items():
            failed = "loaded"
            try:
                part = load()
                failed = "saved, and the trained weights would be lost at the end"
                part.save_pretrained(target)
            except Exception as error:  # other people's files: any exception of any reader or writer
                cause = one_line(f"{type(error).__name__}: {error}", MAX_CAUSE_CHARS)
                yield f"{file} cannot be {failed} ({cause}). Correct the file (of a model on the Hub, in a copy)"


def _generation(folder: str):
    """Load the settings as `from_pretrained` of a model does, from config.json if there is no file of their own."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(folder)
    except OSError:
        return GenerationConfig.from_pretrained(folder, config_file_name="config.json", _from_model_config=True)
