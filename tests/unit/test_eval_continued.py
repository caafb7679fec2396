"""Results and progress of an earlier release (tests/data/server_results, written at b836a1e) are read, continued and re-scored.
PORT stands for the server's."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from model_server import answer

from openrlhf_ebpo.data.table import read_table
from openrlhf_ebpo.eval import report, run, score
from openrlhf_ebpo.run.results import find_results

DATA = Path(__file__).parents[1] / "data" / "server_results"
PROTOCOL = "default+n=3,max_new_tokens=64,template=raw,chat_template=False"
GRADES = ("correct", "extracted", "error")


@pytest.fixture
def earlier(tmp_path, monkeypatch, serve):
    """A folder with what the earlier release left, the server that answered it, and the command to repeat."""
    server = serve(lambda handler, body, _: handler.reply(answer(body, ["C is correct."])) or True)
    for name in ("q.jsonl", "c.jsonl", "counting.py"):
        shutil.copy(DATA / name, tmp_path)
    for task in ("file-q", "file-c", "count"):
        folder = tmp_path / "out" / PROTOCOL / task / "step-000000"
        shutil.copytree(DATA / task, folder)
        for path in folder.glob("*.json*"):
            path.write_text(path.read_text().replace("PORT", str(server.server_port)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("counting", None)
    protocol = ["--n", "3", "--template", "raw", "--no-chat_template", "--max_new_tokens", "64"]
    argv = [
        "--model",
        f"openai:{server.url}#m",
        "--output_dir",
        "out",
        "--tasks",
        "file:q.jsonl,file:c.jsonl,counting:TASK",
    ]
    yield tmp_path, server, [*argv, *protocol]
    sys.modules.pop("counting", None)


def summary_of(folder: Path, task: str) -> dict:
    return json.loads((folder / "out" / PROTOCOL / task / "step-000000" / "summary.json").read_text())


def test_results_stay_what_is_missing_is_asked_and_a_changed_scorer_re_scores(earlier, capsys):
    folder, server, argv = earlier
    scored = summary_of(folder, "count")
    before = [path.read_bytes() for path in sorted((folder / "out").rglob("file-q/*/*"))]
    run.main(argv)
    assert [body["prompt"].partition("\n")[0] for _, body, _ in server.asked] == ["Third?"] * 3
    assert [path.read_bytes() for path in sorted((folder / "out").rglob("file-q/*/*"))] == before
    found = {each.task: each for each in find_results(folder / "out")}
    assert sorted(found) == ["count", "file-c", "file-q"]
    assert [row["correct"] for row in rows(found["file-c"])] == [
        True,
        True,
        False,
        True,
        False,
        False,
        True,
        True,
        True,
    ]
    assert "| file-q |" in Path(report.write_report([folder / "out"])).read_text()

    path = folder / "counting.py"
    path.write_text(path.read_text().replace("== row", ">= row"))
    sys.modules.pop("counting")
    run.main(argv)
    assert len(server.asked) == 3 and "count, step 0: its scorer has changed" in capsys.readouterr().out
    after = summary_of(folder, "count")
    assert (scored["metrics"]["pass@1"]["value"], after["metrics"]["pass@1"]["value"]) == pytest.approx((4 / 9, 2 / 3))
    assert after["passes"][:1] == scored["passes"] and after["tokens"] == scored["tokens"]
    assert list(folder.glob(f"out/superseded/*/{PROTOCOL}/count/step-000000/summary.json"))


def rows(result) -> list[dict]:
    return read_table(result.path / "samples.parquet").to_pylist()


def test_its_responses_get_the_same_scores_again(tmp_path):
    output = tmp_path / "again.parquet"
    score.main(["--input", str(DATA / "file-q" / "samples.parquet"), "--output", str(output), "--workers", "1"])
    before, again = (read_table(path).to_pylist() for path in (DATA / "file-q" / "samples.parquet", output))
    assert len(again) == 12 and sum(row["correct"] for row in again) == 6
    assert [[row[name] for name in GRADES] for row in again] == [[row[name] for name in GRADES] for row in before]
