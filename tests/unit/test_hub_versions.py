"""Every way to the Hub and back, with the installed huggingface_hub and with the other major version that is
allowed."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import hub_runs
import huggingface_hub
import pytest
from hub_runs import REPO
from patience import seconds
from recorded_runs import write_run

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.hub import space
from openrlhf_ebpo.space.hub import fetch

OTHER = Path(sysconfig.get_path("purelib")).parents[2] / "hub2"  # made once, and reused
RUN, SPACE = "owner/tiny-run", "owner/app"


def exit_status(*argv) -> int:
    with pytest.raises(SystemExit) as stopped:
        hub_cli.main(list(map(str, argv)))
    return stopped.value.code


def test_push_and_pull(hub, use_hub, make_run, tmp_path, capsys):
    run_dir = hub_runs.set_repo(make_run())
    hub_cli.main(["push", str(run_dir)])
    hub_cli.main(["push", str(run_dir), "--dry_run"])
    assert "nothing is missing" in capsys.readouterr().out
    hub_cli.main(["pull", f"{REPO}@2", str(tmp_path / "pulled")])
    hub_runs.assert_pushed(hub, run_dir, 4)
    weights = hub_runs.model_of(run_dir, 2) / "model.safetensors"
    assert (tmp_path / "pulled" / "model.safetensors").read_bytes() == weights.read_bytes()


def test_a_failure_is_told_in_words(hub, use_hub, make_run, monkeypatch):
    hub.fail(r"POST .*/commit/", 503, times=9)
    assert "(503)" in exit_status("push", make_run(), "--repo", REPO)
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(0.1)))
    hub.faults.clear()
    hub.fail(r"GET .*/whoami", hang=True, times=9)
    assert "the Hub cannot be reached" in hub_runs.notices(hub)


def test_a_run_a_space_and_the_spaces_reader(hub, use_hub, tmp_path, monkeypatch):
    monkeypatch.setattr(space, "package_files", lambda: {"openrlhf_ebpo/x.py": b"x = 1\n"})
    hub_cli.main(["push-run", str(write_run(tmp_path)), "--repo", RUN, "--public"])
    hub_cli.main(["deploy-space", SPACE, "--runs", RUN])
    assert "app.py" in hub.repo(SPACE, "space").files()
    folder, _ = fetch(RUN, tmp_path / "cache")
    assert (folder / "run.json").is_file() and list((folder / "rollouts").iterdir())


@pytest.fixture(scope="module")
def other() -> Path:
    """A folder with the other major version and what it needs, for PYTHONPATH."""
    if not (OTHER / "huggingface_hub").is_dir():
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", str(OTHER), "huggingface_hub>=2,<3"],
            capture_output=True,
            text=True,
        )
        if done.returncode and not os.environ.get("CI"):
            pytest.skip(f"huggingface_hub 2 cannot be installed: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr
    return OTHER


@pytest.mark.skipif(huggingface_hub.__version__.startswith("2."), reason="this is the other version")
def test_all_of_it_works_with_the_other_version(other, tmp_path):
    (tmp_path / "transformers.py").write_text("raise ImportError\n")  # the installed one refuses this version
    path = os.pathsep.join([str(tmp_path), str(other), *filter(None, [os.environ.get("PYTHONPATH")])])
    code = "import huggingface_hub; print(huggingface_hub.__version__)"
    environment = {**os.environ, "PYTHONPATH": path}
    version = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout
    assert version.startswith("2.")
    files = [__file__, str(Path(__file__).with_name("test_hub_client.py"))]
    calls_the_hub = ["-k", "not attempt and not pause and not tried_again"]  # of test_hub_client.py
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *calls_the_hub, *files],
        env=environment,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout[-4000:]
