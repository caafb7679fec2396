"""Progress files: what a long job has finished, a JSON line each, behind a first line with the job's settings.

A killed job loses nothing that it appended; a repeated one continues, unless its settings differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import append_json_line, read_json_lines, try_lock

Append = Callable[[dict], None]


@contextmanager
def progress_file(path: str | Path, settings: dict, force: bool = False) -> Iterator[tuple[list[dict], Append]]:
    """Yield the records that are there already and the function that adds one; one process at a time.

    settings: what the records depend on, as JSON values. They must equal those that the file was begun with.
    force: move an existing file aside and start over.

    Raises:
        UsageError: other settings (the differences are named), another process at work, or no progress file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if force and path.exists():
        path.rename(path.with_name(f"{path.name}.{datetime.now():%Y%m%dT%H%M%S.%f}"))
    with open(path, "a+b") as file:
        with suppress(OSError):  # a disk without locks
            if not try_lock(file):
                raise UsageError(f"{path}: another process is writing to it; wait for it, or write elsewhere")
        file.seek(0)
        content = file.read()
        if not content.endswith(b"\n"):  # a crash tore the last line: the next record must not be glued to it
            file.truncate(content.rfind(b"\n") + 1)
        lines = _read(path)
        if changed := changes_between(lines[0]["settings"] if lines else settings, settings):
            raise UsageError(
                f"{path} was begun with other settings ({'; '.join(changed.values())}). Repeat the old "
                "command to continue it, write elsewhere, or start over with --force, which keeps the old file under "
                "another name."
            )
        if not lines:
            append_json_line(path, {"settings": settings})
        yield lines[1:], lambda record: append_json_line(path, record)


def changes_between(before: Mapping, now: Mapping) -> dict[str, str]:
    """Return the names of settings that differ, each with both values as text."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return {name: f"{name}: {before.get(name)!r} there, {now.get(name)!r} now" for name in names}


def progress_path(output: str | Path) -> Path:
    """Return the progress file of a command's output."""
    return Path(output).with_suffix(".progress.jsonl")


def output_problems(output: str, source: str, force: bool) -> list[str]:
    """List what forbids to write --output: it is the --input, or a file that another command wrote."""
    if Path(output).resolve() == Path(source).resolve():
        return [f"--output {output} is the input: give it another name"]
    if Path(output).exists() and not progress_path(output).exists() and not force:
        return [f"--output {output} exists and is not from this command: name another file, or --force replaces it"]
    return []


def fingerprint(content: bytes) -> str:
    """12 hex digits that tell contents apart."""
    return hashlib.sha256(content).hexdigest()[:12]


def file_identity(path: str | Path) -> str:
    """A file's name and fingerprint: the same for a copy of it elsewhere, another one after an edit."""
    path = Path(path)
    return f"{path.name}@{fingerprint(path.read_bytes())}"


def model_identity(model: str) -> str:
    """A Hub name as it is; a local model's folder name and a fingerprint of its configuration and of the sizes and
    last 64 KiB of its weight files, so that other weights under the same name are noticed without reading them all."""
    folder = Path(model)
    if not folder.is_dir():
        return model
    parts = [(folder / "config.json").read_bytes()]
    for file in sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.bin")):
        size = file.stat().st_size
        with open(file, "rb") as weights:
            weights.seek(max(size - (64 << 10), 0))
            parts += [f"{file.name} {size}".encode(), weights.read()]
    return f"{folder.name}@{fingerprint(b''.join(parts))}"


def _read(path: Path) -> list[dict]:
    try:
        lines = read_json_lines(path)
        if lines:
            lines[0]["settings"].items()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a progress file, or is damaged ({error!r}): move it away, or let --force do it"
        ) from error
    return lines
