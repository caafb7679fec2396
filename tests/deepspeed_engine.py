"""A stand-in for DeepSpeed's engine that saves and loads, without a model."""

from pathlib import Path


class Engine:
    """Writes a checkpoint as DeepSpeed does: the files, then `latest` if it is asked to. Loads as it does: by the tag,
    or else by `latest`; nothing without either."""

    global_steps = 7

    def __init__(self, dies: bool = False):
        self.dies = dies

    def load_checkpoint(self, load_dir, tag, **options):
        latest = Path(load_dir) / "latest"
        if tag is None and not latest.is_file():
            return None, None
        path = Path(load_dir) / (tag or latest.read_text())
        assert (path / "weights").read_text() == "whole"
        return str(path), {"step": path.name}

    def save_checkpoint(self, save_dir, tag, client_state, save_latest):
        folder = Path(save_dir) / tag
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights").write_text("half")
        if self.dies:
            raise OSError("disk full")
        (folder / "weights").write_text("whole")
        if save_latest:
            (Path(save_dir) / "latest").write_text(tag)
