"""The Space: what is uploaded, that it starts with nothing else, and what people without a plan are told."""

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import time
import urllib.request
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from hub_repos import File
from recorded_runs import write_run

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import run_data, space
from openrlhf_ebpo.hub_client import HubError
from openrlhf_ebpo.run.run_log import read_metrics
from openrlhf_ebpo.space.document import STATIC

REPO, RUN = "owner/ebpo", "owner/tiny-run"


@pytest.fixture
def deploy(api, hub, monkeypatch, no_waiting):
    """The command, given more flags."""
    for module in (run_data, space):
        monkeypatch.setattr(module, "hub_api", lambda: api)
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_PAUSE", "0.01")

    def command(*flags, repo=REPO):
        parser = argparse.ArgumentParser()
        space.add_flags(parser)
        space.run(parser.parse_args([repo, *flags]))

    return command


@pytest.fixture
def small_package(monkeypatch):
    """One file in place of the package, which takes a second to be looked through and packed."""
    monkeypatch.setattr(space, "package_files", lambda: {"openrlhf_ebpo/x.py": b"x = 1\n"})


def push_run(tmp_path, public: bool = True) -> Path:
    run_dir = write_run(tmp_path)
    run_data.run(argparse.Namespace(run_dir=run_dir, repo=RUN, public=public, dry_run=False, not_secret=[]))
    return run_dir


def downloaded(hub, folder: Path) -> Path:
    for path, content in hub.repo(REPO, "space").files().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def bare_python() -> dict:
    """Arguments for a Python that knows the installed packages and nothing of this checkout."""
    known = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "OMP_NUM_THREADS")}
    return {"env": {**known, "PYTHONPATH": sysconfig.get_path("purelib")}, "text": True}


def test_the_app_the_package_and_the_runs_go(tmp_path, hub, deploy, capsys):
    push_run(tmp_path)
    capsys.readouterr()
    deploy("--runs", RUN)
    said = capsys.readouterr().out
    assert f"the app is at {hub.url}/spaces/{REPO} (" in said and "secret" not in said
    repo = hub.repo(REPO, "space")
    files = repo.files()
    packed = {name for name in files if name.startswith("openrlhf_ebpo/")}
    assert set(files) - packed == {".gitattributes", "app.py", "README.md", "requirements.txt"}
    assert {"space/main.py", "eval/metrics.py", "eval/reported.json", "run/run_log.py"} <= {
        name.partition("/")[2] for name in packed
    }
    assert {f"openrlhf_ebpo/space/static/{path.relative_to(STATIC)}" for path in STATIC.rglob("*.*")} <= packed
    assert not [name for name in packed if any(word in name for word in ("pycache", "tests", "/."))]
    needed = files["requirements.txt"].decode().splitlines()
    assert {"numpy", "pyarrow", "safetensors"} <= set(needed) and not any("extra" in line for line in needed)
    front = yaml.safe_load(files["README.md"].decode().split("\n---\n")[0])
    gradio = next(line for line in needed if line.startswith("gradio=="))
    assert front["datasets"] == [RUN] and fnmatch(f"gradio=={front['sdk_version']}", gradio)
    assert front["app_file"] == "app.py" and len(files["app.py"].splitlines()) < 20
    assert repo.private and repo.settings["sdk"] == "gradio"
    assert [(v["key"], v["value"]) for v in repo.settings["variables"]] == [("EBPO_SPACE_RUNS", RUN)]
    commits = len(repo.history())
    deploy("--runs", RUN)
    assert "(0 of " in capsys.readouterr().out and len(repo.history()) == commits


def test_the_real_app_starts_from_exactly_the_uploaded_files(tmp_path, hub, deploy):
    """With nothing but the packages of requirements.txt, which this environment has too. (An environment made from
    requirements.txt alone takes minutes.)"""
    run_dir = push_run(tmp_path)
    deploy("--runs", RUN)
    folder = downloaded(hub, tmp_path / "copy")
    how = bare_python()
    how["env"] |= {"EBPO_SPACE_RUNS": RUN, "HF_ENDPOINT": hub.url}
    how["env"] |= {"HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1,localhost"}
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen([sys.executable, "-S", "app.py"], cwd=folder, stdout=log, stderr=log, **how)
        try:
            page = answer(process, tmp_path / "log")
        finally:
            process.kill()
            process.wait()
    assert "gradio" in page.lower()
    assert fetched(folder, how) == f"{len(read_metrics(run_dir))} []"
    assert not {"torch", "ray", "openrlhf"} & {name.partition("==")[0] for name in listed(folder)}


def fetched(folder: Path, how: dict) -> str:
    """Steps of the run that the uploaded app itself gets from the Hub, and what it leaves out."""
    program = (
        "import sys\nsys.path.insert(0, '.')\n"
        "from pathlib import Path\nfrom openrlhf_ebpo.space.hub import fetch\nfrom openrlhf_ebpo.run.run_log "
        "import read_metrics\n"
        f"path, left_out = fetch({RUN!r}, Path('cache'))\nprint(len(read_metrics(path)), left_out)"
    )
    (folder / "look.py").write_text(program)
    done = subprocess.run([sys.executable, "-S", "look.py"], cwd=folder, capture_output=True, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def listed(folder: Path) -> list[str]:
    return (folder / "requirements.txt").read_text().split()


def answer(process: subprocess.Popen, log: Path) -> str:
    """The page of an app that says in its log where it is."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(480):
        assert process.poll() is None, log.read_text()[-3000:]
        if found := re.search(r"Open (http\S+)", log.read_text()):
            return opener.open(found[1], timeout=60).read().decode()
        time.sleep(0.25)
    raise AssertionError(f"no answer\n{log.read_text()[-3000:]}")


def test_free_accounts_are_told_what_402_means(tmp_path, hub, deploy, small_package):
    push_run(tmp_path)
    hub.fail(r"POST /api/repos/create", status=402, times=99)
    with pytest.raises(HubError) as error:
        deploy("--runs", RUN)
    for part in ("402", "paid plan", "https://huggingface.co/pricing"):
        assert part in str(error.value)
    # the run's, and this one once: a plan does not come by asking again
    assert hub.count("POST /api/repos/create") == 2
    assert ("space", REPO) not in hub.repos


def test_private_runs_need_a_secret_and_missing_ones_are_named(tmp_path, hub, deploy, small_package, capsys):
    push_run(tmp_path, public=False)
    with pytest.raises(HubError, match=r"--runs owner/absent, which .*hub push-run. makes: no such repo"):
        deploy("--runs", RUN, "owner/absent")
    assert ("space", REPO) not in hub.repos
    deploy("--runs", RUN)
    assert f"{RUN}: private. Give the Space a secret EBPO_SPACE_HF_TOKEN" in capsys.readouterr().out
    assert hub.token not in str(hub.repo(REPO, "space").settings) + str(hub.repo(REPO, "space").files())


def test_dry_run_lists_sizes_and_what_is_wrong_is_said_first(hub, deploy, capsys):
    deploy("--runs", RUN, "--dry_run")
    said = capsys.readouterr().out
    assert "openrlhf_ebpo/space/main.py" in said and "app.py" in said
    assert f"would go to {REPO}; nothing was sent" in said
    with pytest.raises(UsageError, match="owner/name"):
        deploy("--runs", "not-a-repo")
    with pytest.raises(UsageError, match="not for somebody"):
        deploy("--runs", RUN, repo="somebody/ebpo")
    assert not hub.repos


STRANGERS = {
    "another app": {"app.py": b"theirs"},
    "static": {"index.html": b"x", "README.md": b"---\nsdk: static\n---\n"},
    "docker": {"Dockerfile": b"x", "README.md": b"---\nsdk: docker\n---\n"},
    "main.py": {"main.py": b"x", "README.md": b"---\nsdk: gradio\napp_file: main.py\n---\n"},
    "requirements": {"requirements.txt": b"numpy\n"},
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_space_of_somebody_else_is_refused_by_the_name_of_a_file(tmp_path, hub, deploy, small_package, kind):
    push_run(tmp_path)
    files = {name: File(content, False) for name, content in STRANGERS[kind].items()}
    hub.create(REPO, "space").commit("main", files, "theirs")
    with pytest.raises(UsageError, match=re.escape(min(files, key=lambda name: name == "README.md"))):
        deploy("--runs", RUN)
    assert hub.repo(REPO, "space").files() == STRANGERS[kind]


def test_the_card_that_the_hub_makes_is_replaced_and_one_that_was_edited_stays(tmp_path, hub, deploy, small_package):
    push_run(tmp_path)
    made = b"---\ntitle: Ebpo\nsdk: gradio\napp_file: app.py\n---\n\nCheck out the configuration reference at https://x/y\n"
    repo = hub.create(REPO, "space")
    repo.commit("main", {"README.md": File(made, False)}, "made by the Hub")
    deploy("--runs", RUN)
    ours = repo.files()["README.md"]
    assert b"python_version" in ours
    repo.commit("main", {**repo.find("main").files, "README.md": File(ours + b"edited\n", False)}, "by hand")
    deploy("--runs", RUN)
    assert repo.files()["README.md"] == ours + b"edited\n"
