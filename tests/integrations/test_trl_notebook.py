"""examples/trl_ebpo.ipynb: its cells run in order on a CPU, with two training steps."""

import json
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
