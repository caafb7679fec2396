"""Compare the rows that a resumed training draws with those that it drew before.

A checkpoint has positions in the data set, and neither rows nor prompts. With other rows a resumed run would train on
some prompts twice and on others never. Every checkpoint's manifest has the number of rows and a hash of them.
"""

from __future__ import annotations

import hashlib
import json

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.resume import CheckpointError, Search
from openrlhf_ebpo.run.run_log import PRIOR
from openrlhf_ebpo.train.prompt_sets import read_rows

BATCH_ROWS = 2**12
MAX_ERROR_CHARS = 300


def identify_rows(args, found: Search | None) -> dict:
    """Read the rows of a training as OpenRLHF reads, mixes and limits them; return their number, and a hash of prompts,
    labels and images in their order. Other columns, the kind of file and the template do not count.

    Args:
        args: upstream's, nested. found: the checkpoint to resume, whose rows must be these.

    Raises:
        UsageError: the data set cannot be read. CheckpointError: it has other rows.
    """
    flags = args.data
    try:
        limits = flags.prompt_split, flags.max_samples
        data = read_rows(flags.prompt_dataset, *limits, args.use_ms, flags.prompt_probs, args.train.seed)
    except Exception as error:  # of any reader, the Hub's too
        cause = one_line(f"{error.__cause__ or error}", MAX_ERROR_CHARS)
        raise UsageError(f"--data.prompt_dataset {flags.prompt_dataset} cannot be read: {cause}") from error
    data = data.select(range(min(flags.max_samples, len(data))))
    columns = (flags.input_key, flags.label_key, flags.image_key)  # not all need be there
    data = data.select_columns([name for name in columns if name in data.column_names])
    now, before = identity(data), (found and found.tag and manifest.read(found.folders[0] / found.tag).data) or {}
    if not before or before == now:
        return now
    was, ways = before["rows"], "Resume with the rows of then"
    differ = f"{was} rows then, {now['rows']} now" if was != now["rows"] else f"{was} rows, not the same ones"
    if flags.prompt_probs:
        ways += ", and the --data.prompt_probs and --train.seed that draw them"
    if now["rows"] > was and identity(data.select(range(was))) == before:
        differ += f", of which the first {was} are the same"
        ways += "" if flags.prompt_probs else f" (--data.max_samples {was} leaves the new ones out)"
    raise CheckpointError(
        f"--data.prompt_dataset {flags.prompt_dataset} is not what {found.tag} was trained on: {differ}. A resumed run "
        f"would train on some prompts twice and on others never. {ways}; or begin a new run from an exported model, "
        f"with --algo.advantage.ebpo.init_prior {found.folders[0] / found.tag / PRIOR}"
    )


def identity(data) -> dict:
    """Return the number of rows of a `datasets.Dataset`, and the SHA-256 of their values, column by column. It does not
    depend on how the data set is cut into chunks."""
    hashes = [hashlib.sha256() for _ in data.column_names]
    for table in data.with_format("arrow").iter(BATCH_ROWS):
        for column, found in zip(table.columns, hashes, strict=True):
            values = json.dumps(column.to_pylist(), ensure_ascii=False, default=repr)
            found.update(values[1:-1].encode() + b", ")
    return {"rows": len(data), "sha256": hashlib.sha256(b"".join(found.digest() for found in hashes)).hexdigest()}
