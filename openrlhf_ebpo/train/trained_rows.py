"""Compare the rows that a resumed training draws with those that it drew before.

A checkpoint has positions in the data set, and neither rows nor prompts. With other rows a resumed run would train on
some prompts twice and on others never. Every checkpoint's manifest has the number of rows and a hash of them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.resume import CheckpointError, Search
from openrlhf_ebpo.run.run_log import PRIOR

BATCH_ROWS = 2**12
MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class TrainedRows:
    """The rows of a training, as OpenRLHF reads, mixes and limits them.

    names, probs: of the data sets, separated by commas. columns: of prompt, label and images; not all need be there.
    """

    names: str
    probs: str | None
    split: str
    seed: int
    max_samples: int
    columns: tuple[str | None, ...]
    use_ms: bool

    @classmethod
    def from_args(cls, args) -> TrainedRows:
        """From upstream's nested arguments."""
        data = args.data
        return cls(
            names=data.prompt_dataset,
            probs=data.prompt_probs,
            split=data.prompt_split,
            seed=args.train.seed,
            max_samples=data.max_samples,
            columns=(data.input_key, data.label_key, data.image_key),
            use_ms=args.use_ms,
        )

    def identify(self, found: Search | None) -> dict:
        """Read the rows; return their number, and a hash of prompts, labels and images in their order. Other columns,
        the kind of file and the template do not count.

        Args:
            found: the checkpoint to resume, whose rows must be these.

        Raises:
            UsageError: the data set cannot be read. CheckpointError: it has other rows.
        """
        data = self._read()
        now, before = identity(data), (found and found.tag and manifest.read(found.folders[0] / found.tag).data) or {}
        if not before or before == now:
            return now
        longer = now["rows"] > before["rows"]
        appended = longer and identity(data.select(range(before["rows"]))) == before
        raise CheckpointError(self._refusal(found, before["rows"], now["rows"], appended))

    def _read(self):
        """Read the columns by upstream's reader."""
        from datasets import disable_progress_bars
        from openrlhf.datasets.utils import blending_datasets

        disable_progress_bars()
        strategy = SimpleNamespace(
            print=lambda *_: None, is_rank_0=lambda: False, args=SimpleNamespace(use_ms=self.use_ms)
        )
        limits = {"max_count": self.max_samples, "dataset_split": self.split}
        try:
            data = blending_datasets(self.names, self.probs, strategy, self.seed, **limits)
        except Exception as error:  # of any reader, the Hub's too
            cause = one_line(f"{error.__cause__ or error}", MAX_ERROR_CHARS)
            raise UsageError(f"--data.prompt_dataset {self.names} cannot be read: {cause}") from error
        data = data.select(range(min(self.max_samples, len(data))))
        return data.select_columns([name for name in self.columns if name in data.column_names])

    def _refusal(self, found: Search, was: int, now: int, appended: bool) -> str:
        differ = f"{was} rows then, {now} now" if was != now else f"{was} rows, not the same ones"
        ways = "Resume with the rows of then"
        if self.probs:
            ways += ", and the --data.prompt_probs and --train.seed that draw them"
        if appended:
            differ += f", of which the first {was} are the same"
            ways += "" if self.probs else f" (--data.max_samples {was} leaves the new ones out)"
        checkpoint = found.folders[0] / found.tag
        return (
            f"--data.prompt_dataset {self.names} is not what {found.tag} was trained on: {differ}. A resumed run would "
            f"train on some prompts twice and on others never. {ways}; or begin a new run from an exported model, with "
            f"--algo.advantage.ebpo.init_prior {checkpoint / PRIOR}"
        )


def identity(data) -> dict:
    return {"rows": len(data), "sha256": hash_rows(data)}


def hash_rows(data) -> str:
    """Return the SHA-256 of the values of a `datasets.Dataset`, column by column. It does not depend on how the data
    set is cut into chunks."""
    hashes = [hashlib.sha256() for _ in data.column_names]
    for table in data.with_format("arrow").iter(BATCH_ROWS):
        for column, found in zip(table.columns, hashes, strict=True):
            values = json.dumps(column.to_pylist(), ensure_ascii=False, default=repr)
            found.update(values[1:-1].encode() + b", ")
    return hashlib.sha256(b"".join(found.digest() for found in hashes)).hexdigest()
