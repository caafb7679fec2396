"""examples/trl_ebpo.ipynb and trl_small_groups.py run on a CPU, with a few training steps."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "trl", reason="runs in the environment of requirements/trl.txt: bash scripts/test_integrations.sh trl"
)
NOTEBOOK = Path(__file__).parents[2] / "examples" / "trl_ebpo.ipynb"
SETTING = "(1, 50)"  # seeds and steps on a CPU


def test_the_notebook_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if "%pip" not in "".join(cell["source"]))
    assert SETTING in code
    names = {}
    exec(compile(code.replace(SETTING, "(1, 2)"), str(NOTEBOOK), "exec"), names)
    assert set(names["results"]) == {("GRPO", 0), ("EBPO", 0)}
    assert any("ebpo/shrinkage" in row for row in names["results"]["EBPO", 0][1])


def test_the_example_prints_both_trainers(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trl_small_groups.py"])
    example = runpy.run_path(str(NOTEBOOK.with_name("trl_small_groups.py")))
    example["main"].__globals__.update(STEPS=3, PROMPTS=4)
    example["main"]()
    header, *rows = capsys.readouterr().out.splitlines()[-7:]
    assert header.split() == example["COLUMNS"]
    assert [row.split()[0] for row in rows[::3]] == ["GRPO", "EBPO"]
    assert [len(row.split()) for row in rows] == [6, 5, 5, 7, 6, 6]  # GRPO has no rescued fraction
