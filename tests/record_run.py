"""Copy a run for the tests of the page: `python tests/record_run.py runs/quickstart/arms/ebpo/run
tests/data/quickstart_run`.

As it would be published, without paths and secrets; of its rollouts the first step and every twentieth.
"""

import json
import shutil
import sys
from pathlib import Path

from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub.public import public, public_run
from openrlhf_ebpo.run.run_log import rollouts_path

EVERY = 20


def record(run_dir: Path, target: Path) -> None:
    target.mkdir(parents=True)
    write_json(target / "run.json", public_run(json.loads((run_dir / "run.json").read_text())))
    shutil.copy(run_dir / "metrics.jsonl", target)
    shutil.copy(run_dir / "prior.json", target)
    shutil.copytree(run_dir / "eval", target / "eval")
    for summary in (target / "eval").rglob("summary.json"):
        write_json(summary, public(json.loads(summary.read_text())))
    (target / "rollouts").mkdir()
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    for step in (1, *range(EVERY, last + 1, EVERY)):
        shutil.copy(rollouts_path(run_dir, step), target / "rollouts")


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]))
