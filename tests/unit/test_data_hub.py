"""`data prepare` from the Hugging Face Hub: the real client against the test server."""

import io
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from hub_repos import File

from openrlhf_ebpo.data.table import read_table

CARD = "---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/train-*\n---\n"


def part(number: int) -> File:
    sink = io.BytesIO()
    pq.write_table(pa.table({"prompt": [f"question {number}"], "solution": ["34"]}), sink)
    return File(sink.getvalue(), False)


def prepare(tmp_path, **environment):
    command = [sys.executable, "-m", "openrlhf_ebpo.cli.data", "prepare", "--input", "owner/set", "--subset", "en"]
    return subprocess.run(
        [*command, "--validation", "0", "--output", str(tmp_path / "out")],
        env={**os.environ, "HF_HOME": str(tmp_path / "hf_home"), **environment},
        capture_output=True,
        text=True,
    )


def test_a_data_set_is_downloaded_and_its_commit_recorded(hub, hub_environment, tmp_path):
    files = {f"en/train-{number}.parquet": part(number) for number in (0, 1)}
    files["README.md"] = File(CARD.encode(), False)
    commit = hub.create("owner/set", "dataset").commit("main", files, "data")
    done = prepare(tmp_path, **hub_environment)
    assert done.returncode == 0, done.stderr
    train = read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert [(row["question"], row["label"], row["datasource"]) for row in train] == [
        ("question 0", "34", "set"),
        ("question 1", "34", "set"),
    ]
    files = json.loads((tmp_path / "out" / "report.json").read_text())["files"]
    assert [file["path"].partition("snapshots/")[2] for file in files] == [
        f"{commit.id}/en/train-0.parquet",
        f"{commit.id}/en/train-1.parquet",
    ]
    again = prepare(tmp_path, HF_HUB_OFFLINE="1")
    assert again.returncode == 0 and "is complete" in again.stdout


def test_an_unreachable_hub_says_what_to_do(tmp_path):
    done = prepare(tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "--input owner/set: Couldn't reach" in done.stderr and "--input FILE" in done.stderr
    assert not (tmp_path / "out").exists()
