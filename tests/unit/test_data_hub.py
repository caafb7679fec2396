"""`data prepare` from the Hugging Face Hub: the real client against a small read-only server of the Hub's protocol."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_ebpo.data.table import read_table

COMMIT = "0123456789" * 4


class Hub(BaseHTTPRequestHandler):
    """Serves the files of one folder as a data set of any name."""

    folder: Path
    log_message = lambda *_: None  # noqa: E731

    def do_GET(self):
        path = self.path.partition("?")[0]
        _, resolve, file = path.partition("/resolve/")
        if resolve:
            file = self.folder / file.partition("/")[2]
            self.answer(file.read_bytes() if file.is_file() else None)
        elif "/tree/" in path:
            place = self.folder / path.partition("/tree/")[2].partition("/")[2]
            self.answer(json.dumps([self.entry(file) for file in place.rglob("*")]).encode())
        elif path.startswith("/api/datasets/"):
            names = [{"rfilename": self.entry(file)["path"]} for file in self.folder.rglob("*.*")]
            self.answer(json.dumps({"id": "owner/set", "sha": COMMIT, "siblings": names}).encode())
        else:
            self.answer(None)

    do_HEAD = do_GET

    def entry(self, file):
        if file.is_dir():
            return {"type": "directory", "path": str(file.relative_to(self.folder)), "size": 0, "oid": "0" * 40}
        digest = hashlib.sha1(file.read_bytes()).hexdigest()
        return {"type": "file", "path": str(file.relative_to(self.folder)), "size": file.stat().st_size, "oid": digest}

    def answer(self, body):
        self.send_response(404 if body is None else 200)
        if body is None:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("ETag", f'"{hashlib.sha1(body or b"").hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command == "GET" and body:
            self.wfile.write(body)


@pytest.fixture
def hub(tmp_path):
    folder = tmp_path / "hub"
    (folder / "en").mkdir(parents=True)
    for part in (0, 1):
        table = pa.table({"prompt": [f"question {part}"], "solution": ["34"]})
        pq.write_table(table, folder / "en" / f"train-{part}.parquet")
    config = "configs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/train-*\n"
    (folder / "README.md").write_text(f"---\n{config}---\n")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Hub,), {"folder": folder}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def prepare(tmp_path, **environment):
    command = [sys.executable, "-m", "openrlhf_ebpo.cli.data", "prepare", "--input", "owner/set", "--subset", "en"]
    variables = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1", **environment}
    return subprocess.run(
        [*command, "--validation", "0", "--output", str(tmp_path / "out")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


def test_a_data_set_is_downloaded_and_its_commit_recorded(hub, tmp_path):
    done = prepare(tmp_path, HF_ENDPOINT=hub)
    assert done.returncode == 0, done.stderr
    train = read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert [(row["question"], row["label"], row["datasource"]) for row in train] == [
        ("question 0", "34", "set"),
        ("question 1", "34", "set"),
    ]
    files = json.loads((tmp_path / "out" / "report.json").read_text())["files"]
    assert [file["path"].partition("snapshots/")[2] for file in files] == [
        f"{COMMIT}/en/train-0.parquet",
        f"{COMMIT}/en/train-1.parquet",
    ]
    again = prepare(tmp_path, HF_HUB_OFFLINE="1")
    assert again.returncode == 0 and "is complete" in again.stdout


def test_an_unreachable_hub_says_what_to_do(tmp_path):
    done = prepare(tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "--input owner/set: Couldn't reach" in done.stderr and "--input FILE" in done.stderr
    assert not (tmp_path / "out").exists()
