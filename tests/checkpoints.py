"""A complete checkpoint for tests: one file in place of a model's, and its manifest."""

from pathlib import Path

from openrlhf_ebpo.run import manifest


def save_checkpoint(ckpt: Path, step: int, content: bytes = b"x", **facts) -> Path:
    """Return its folder, CKPT/_actor/global_stepN; `facts` are the manifest's."""
    folder = ckpt / "_actor" / f"global_step{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mp_rank_00_model_states.pt").write_bytes(content)
    manifest.complete(folder, **facts)
    return folder
