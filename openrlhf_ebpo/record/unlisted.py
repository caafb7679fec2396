"""Checkpoints without any list of their files, as OpenRLHF and this package's first versions saved them."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

METRIC = "metric.json"  # upstream's, written when all ranks have saved
LATEST = "latest"  # DeepSpeed's
SHARD = re.compile(r"(?:(?:bf16_)?zero_pp_rank_(\d+)_)?mp_rank_(\d+)_(model|optim)_states\.pt")


def damage(checkpoint: Path) -> str | None:
    """Going by the names and ends of the files, and by what says that saving had ended."""
    shards = sorted(checkpoint.glob("*.pt"))
    if broken := next((path.name for path in shards if not (path.is_file() and zipfile.is_zipfile(path))), None):
        return f"{broken} is cut off"
    if missing := _missing_shard([path.name for path in shards]):
        return missing
    if not (checkpoint / METRIC).is_file() and named_by_latest(checkpoint.parent) != checkpoint.name:
        return f"neither manifest.json nor {METRIC} is there to say that all its files were saved"
    return None


def named_by_latest(folder: Path) -> str | None:
    """The tag that DeepSpeed would load."""
    try:
        return (folder / LATEST).read_text().strip() or None
    except (OSError, ValueError):
        return None


def _missing_shard(names: list[str]) -> str | None:
    """Going by the names: the model's files have ranks in ZeRO stage 3, the optimizer's in stages 1 to 3."""
    found = {match.groups() for match in map(SHARD.fullmatch, names) if match}
    data = {int(rank) for rank, _, _ in found if rank}
    model = {int(part) for _, part, _ in found}
    zero_3 = any(rank and kind == "model" for rank, _, kind in found)
    ranks = [str(rank) for rank in range(max(data, default=-1) + 1)]
    for part in (f"{number:02d}" for number in range(max(model, default=0) + 1)):
        wanted = {(rank, part, "optim") for rank in ranks}
        wanted |= {(rank, part, "model") for rank in ranks} if zero_3 else {(None, part, "model")}
        if lost := sorted(wanted - found, key=str):
            rank, _, kind = lost[0]
            return f"the {kind} states{f' of rank {rank}' if rank else ''} are missing"
    return None
