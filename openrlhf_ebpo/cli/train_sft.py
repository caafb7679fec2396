"""Upstream's `train_sft`, unchanged, also on a machine without CUDA and without a launcher.

python -m openrlhf_ebpo.cli.train_sft --model.model_name_or_path ... --data.dataset ...
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

from openrlhf_ebpo import chat_template
from openrlhf_ebpo.command import error_exit, nested, parse
from openrlhf_ebpo.data import preflight
from openrlhf_ebpo.extension import add_trust_flag, trust_models
from openrlhf_ebpo.redact import hide_secrets
from openrlhf_ebpo.run import run_lock
from openrlhf_ebpo.train.answer_pairs import MODEL, pair_warnings
from openrlhf_ebpo.train.model_check import check_saving
from openrlhf_ebpo.train.upstream_main import UpstreamMain, adapt_args
from openrlhf_ebpo.upstream.check import check_release, installed_release
from openrlhf_ebpo.upstream.install import all_seams, install

MODULE = "openrlhf.cli.train_sft"
EXAMPLE = r"""examples:
  openrlhf-ebpo sft --model.model_name_or_path Qwen/Qwen3-0.6B --data.dataset pairs.jsonl \
    --data.input_key question --data.output_key answer --ckpt.output_dir model
  deepspeed --module openrlhf_ebpo.cli.train_sft --model.model_name_or_path ...     all GPUs of a machine"""


@error_exit()
def main(argv: list[str] | None = None) -> None:
    run(sys.argv[1:] if argv is None else argv)


def run(argv: list[str]) -> None:
    check_release(all_seams())
    command = UpstreamMain(MODULE)
    parser = command.parser("openrlhf-ebpo sft")
    parser.description = (
        f"OpenRLHF {installed_release()}'s train_sft with all its flags, also on a machine without a GPU. Run by "
        "itself it is one process; deepspeed or torchrun start several."
    )
    parser.epilog = EXAMPLE
    parser.add_argument_group("prompts").add_argument("--data.template_kwargs", **chat_template.ARGUMENTS)
    add_trust_flag(parser)
    flat = vars(parse(parser, argv))
    trust_models(flat.pop("trust_remote_code"))
    hide_secrets(flat)
    args = nested(flat)
    preflight.absolute_paths(args)
    chat_template.set_template_kwargs(args.data)
    files = preflight.InputFiles.from_args(args)
    install()
    files.check()
    files.check_models_fetched()
    check_saving(args, MODEL)
    single_process_environment()
    args = command.validate(args)
    print(*(f"{change}\n" for change in adapt_args(args)), sep="", end="", flush=True)
    first = os.environ["RANK"] == "0"
    if first:
        print(*(f"{warning}\n" for warning in pair_warnings(args)), sep="", end="", flush=True)
    with run_lock.hold_lock(Path(args.ckpt.path)) if first else contextlib.nullcontext():
        command.train(args)
    import torch.distributed

    torch.distributed.destroy_process_group()


def single_process_environment() -> None:
    """Set what a launcher (deepspeed, torchrun) would set, for one process started without one."""
    if "RANK" in os.environ:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


if __name__ == "__main__":
    main()
