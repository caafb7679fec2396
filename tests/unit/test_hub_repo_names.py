"""Repos as people name them, wherever one is asked for."""

import pytest
from commands import refused

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.content import Publishable
from openrlhf_ebpo.hub.hub_settings import parse_repo


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("owner/name", "model", ("owner/name", None)),
        ("owner/name@step-000010", "model", ("owner/name", "step-000010")),
        ("owner/name@refs/pr/1", "model", ("owner/name", "refs/pr/1")),
        ("owner/name@feature/x", "model", ("owner/name", "feature/x")),
        ("owner/name@feature%2Fx", "model", ("owner/name", "feature/x")),
        ("https://huggingface.co/owner/name", "model", ("owner/name", None)),
        ("https://huggingface.co/owner/name/", "model", ("owner/name", None)),
        ("huggingface.co/owner/name/tree/main", "model", ("owner/name", "main")),
        ("https://hf.co/owner/name/tree/refs%2Fpr%2F1", "model", ("owner/name", "refs/pr/1")),
        ("hf://owner/name", "model", ("owner/name", None)),
        ("hf://datasets/owner/run@v1", "dataset", ("owner/run", "v1")),
        ("datasets/owner/run", "dataset", ("owner/run", None)),
        ("owner/run", "dataset", ("owner/run", None)),
        ("https://huggingface.co/datasets/owner/run/tree/v1", "dataset", ("owner/run", "v1")),
        ("https://huggingface.co/spaces/owner/app", "space", ("owner/app", None)),
        ("http://127.0.0.1:8080/owner/name/tree/x", "model", ("owner/name", "x")),
        ("Org-1/Model_2.5-EBPO", "model", ("Org-1/Model_2.5-EBPO", None)),
    ],
)
def test_names_and_addresses(text, kind, expected, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:8080")
    assert parse_repo(text, kind=kind) == expected


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("name", "model", "is owner/name"),
        ("https://example.org/owner/name", "model", "is owner/name"),
        ("https://huggingface.co.example.org/owner/name", "model", "is owner/name"),
        ("https://huggingface.co/owner", "model", "is owner/name"),
        ("https://huggingface.co/owner/name/discussions/1", "model", "is owner/name"),
        ("https://huggingface.co/owner/name/commit/" + "a1" * 20, "model", "is owner/name"),
        ("owner/name/x", "model", "is owner/name"),
        ("owner/..", "model", "is owner/name"),
        ("owner/name@", "model", "Empty revision"),
        ("https://huggingface.co/datasets/owner/run", "model", "this is a dataset, and a model is asked for"),
        ("spaces/owner/app", "dataset", "this is a space, and a dataset is asked for"),
    ],
)
def test_a_wrong_repository_name_is_refused_with_its_flag(text, kind, words):
    with pytest.raises(UsageError, match=words) as caught:
        parse_repo(text, "--repo", kind)
    assert str(caught.value).startswith(f"--repo {text}: ")


@pytest.mark.parametrize("text", ["hf_" + "a1" * 17, "https://huggingface.co/owner/name?token=abcdef"])
def test_a_token_in_the_place_of_a_repo_is_not_echoed(text):
    with pytest.raises(UsageError, match="--repo: this looks like a token") as caught:
        parse_repo(text)
    assert "a1a1" not in str(caught.value) and "abcdef" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["push", "RUN", "--repo", "owner/name@x"], "--repo owner/name@x: a push goes"),
        (["push", "RUN", "--repo", "https://huggingface.co/datasets/owner/name"], "this is a dataset"),
        (["pull", "https://huggingface.co/spaces/owner/x", "DIR"], "OWNER/NAME https://hugg"),
        (["pull", "owner/name@1", "DIR", "--revision", "2"], "names the revision 1 already"),
        (["push-run", "RUN", "--repo", "spaces/owner/x"], "--repo spaces/owner/x: this is a space"),
        (["deploy-space", "datasets/owner/x", "--runs", "owner/run"], "OWNER/NAME datasets/owner/x: this is a dataset"),
        (["deploy-space", "owner/x", "--runs", "spaces/owner/y"], "--runs spaces/owner/y: this is a space"),
    ],
)
def test_every_command_names_its_flag(make_run, tmp_path, argv, words):
    places = {"RUN": make_run(), "DIR": tmp_path / "pulled"}
    assert words in refused(hub_cli.main, *(places.get(each, each) for each in argv))


def test_a_steps_address_pulls_that_step(hub, use_hub, make_run, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: Publishable({}))
    run_dir = make_run()
    for step in ("2", "4"):
        hub_cli.main(["push", str(run_dir), "--repo", f"{hub.url}/owner/model", "--step", step])
    hub_cli.main(["pull", f"{hub.url}/owner/model/tree/step-000002", str(tmp_path / "two")])
    hub_cli.main(["pull", "owner/model@4", str(tmp_path / "four")])
    for name, step in (("two", 2), ("four", 4)):
        assert f'"step": {step}' in (tmp_path / name / "config.json").read_text()
