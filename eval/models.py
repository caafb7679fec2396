"""Find the models to evaluate: one, or all that a training run exported. LoRA adapters are merged."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import models_trusted
from openrlhf_ebpo.hub_models import check_fetched, model_problems
from openrlhf_ebpo.model_folder import CAUSAL_LM
from openrlhf_ebpo.model_folder import problems as folder_problems
from openrlhf_ebpo.progress import fingerprint, model_identity
from openrlhf_ebpo.run.checkpoint_list import final_model, saved_steps
from openrlhf_ebpo.run.run_log import read_known_run
from openrlhf_ebpo.upstream.install import install

logger = logging.getLogger(__name__)

ADAPTER = "adapter_config.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True)
class Model:
    """path: a folder, or a name on the Hub. step: of training; 0 is the model before it."""

    path: str
    step: int = 0


def of_run(run_dir: str | Path, base: bool = True) -> list[Model]:
    """Return the models of a run by step: what training began with, unless base is False, every exported checkpoint,
    and the model at the end of training. Checkpoints that are not there as models are left out with a warning.

    Raises:
        RunDirectoryError: the run is missing. UsageError: it has no exported model.
    """
    run = read_known_run(run_dir, "--checkpoints ")
    final = final_model(Path(run_dir))
    found = ({final[0]: str(final[1])} if final else {}) | _listed(Path(run_dir))
    if not found:
        raise UsageError(
            f"--checkpoints {run_dir}: this run has no exported model; training exports one with every checkpoint if "
            "it is given --ckpt.save_hf"
        )
    return [Model(path, step) for step, path in sorted((found | ({0: run["model"]} if base else {})).items())]


def _listed(run_dir: Path) -> dict[int, str]:
    found = {}
    for each in saved_steps(run_dir):
        if each.model and each.model.is_dir():
            found[each.step] = str(each.model)
        else:
            why = f"{each.recorded} no longer exists" if each.model else "it was saved without --ckpt.save_hf"
            logger.warning("the checkpoint of step %s is left out: %s", each.step, why)
    return found


def is_adapter(path: str) -> bool:
    return (Path(path) / ADAPTER).is_file() and not (Path(path) / "config.json").is_file()


def base_of(adapter: str) -> str:
    """Return path or name of the base model that a LoRA adapter was trained on.

    Raises:
        UsageError: the adapter's configuration does not name it.
    """
    try:
        name = json.loads((Path(adapter) / ADAPTER).read_text())["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"--model {adapter}: {ADAPTER} does not name its base model ({error!r})") from error
    if not isinstance(name, str):
        raise UsageError(f"--model {adapter}: {ADAPTER} does not name its base model (it says {name!r:.100})")
    return name


def identity(path: str) -> dict[str, str]:
    """Fingerprints of a model and its tokenizer, which others of the same name do not have."""
    folder = Path(path)
    tokenizer = fingerprint(b"".join(p.read_bytes() for name in TOKENIZER if (p := folder / name).is_file()))
    if not is_adapter(path):
        return {"model": _identity(path), "tokenizer": tokenizer if folder.is_dir() else ""}
    files = sorted(folder.glob("adapter_*"))
    weights = fingerprint(b"".join(file.read_bytes() for file in files))
    return {"model": f"{_identity(base_of(path))}+{folder.name}@{weights}", "tokenizer": tokenizer}


def _identity(name: str) -> str:
    """Return `model_identity` and, of a name on the Hub, the commit that this machine has of it."""
    from huggingface_hub import try_to_load_from_cache

    config = None if Path(name).is_dir() else try_to_load_from_cache(name, "config.json")
    return model_identity(name) + (f"@{Path(config).parent.name[:12]}" if isinstance(config, str) else "")


def check_loadable(path: str, flag: str = "--model") -> None:
    """Find a model that cannot be loaded before anything heavy starts; reads its configuration and its files' headers.

    Raises:
        UsageError: what is wrong with it.
    """
    name = base_of(path) if is_adapter(path) else path
    install()  # transformers is imported next, and rows for it come first
    problems = model_problems(flag, name)
    if path != name:  # an adapter may have its own tokenizer
        problems += [f"{flag} {path}: {problem}" for problem in folder_problems(path)]
    if problems:
        raise UsageError("\n".join(problems))
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            name, trust_remote_code=models_trusted()
        )  # as vLLM and the tokenizer in training
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).strip().split("\n")[0]
        absent = "" if Path(name).exists() else "no such folder, and from the Hub "
        raise UsageError(f"{flag} {name}: {absent}it cannot be loaded: {reason}") from error
    classes = config.architectures or []
    if classes and not any(each.endswith((*CAUSAL_LM, "ForConditionalGeneration")) for each in classes):
        raise UsageError(f"{flag} {name}: its config.json says {', '.join(classes)}, which does not generate text")
    check_fetched(flag, name)


@contextmanager
def full_model(path: str, scratch: Path) -> Iterator[str]:
    """Yield the model as vLLM takes it: itself or, for LoRA adapters, a merged copy in bfloat16 in a new folder under
    `scratch`, which every node has to see; it is deleted afterwards."""
    if not is_adapter(path):
        yield path
        return
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".merged-", dir=scratch) as folder:
        name, trust = base_of(path), models_trusted()
        print(f"merging the LoRA adapters of {path} into {name}", flush=True)
        base = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, trust_remote_code=trust)
        PeftModel.from_pretrained(base, path).merge_and_unload().save_pretrained(folder)
        own = (Path(path) / "tokenizer_config.json").is_file()
        AutoTokenizer.from_pretrained(path if own else name, trust_remote_code=trust).save_pretrained(folder)
        yield folder
