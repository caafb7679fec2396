"""Secrets stay out of what is printed and stored; names that only look like secrets stay in."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.redact import REDACTED, Secret, hide_secrets, is_secret, redacted, redacted_argv

SECRET = "0123abcdSECRET"


def test_a_printed_namespace_hides_a_secret_that_still_works():
    values = {"logger.wandb.key": SECRET, "data.input_key": "prompt"}
    hide_secrets(values)
    namespace = SimpleNamespace(**values)
    assert SECRET not in f"{namespace} {namespace!r} {values}"
    assert "prompt" in str(namespace)
    assert values["logger.wandb.key"] == SECRET
    assert "".join(values["logger.wandb.key"]) == SECRET


def test_a_secret_survives_the_way_to_another_process():
    there = pickle.loads(pickle.dumps(Secret(SECRET)))
    assert there == SECRET
    assert SECRET not in repr(there)


def test_of_upstreams_flags_only_the_key_of_wandb_is_a_secret():
    flags = json.loads((Path(__file__).parents[1] / "data" / "openrlhf_flags" / "0.11.2.json").read_text())
    names = {name for entry in json.dumps(flags).split('"') if entry.startswith("--") for name in [entry[2:]]}
    assert len(names) > 100 and {name for name in names if is_secret(name)} == {"logger.wandb.key"}


@pytest.mark.parametrize(
    ("argv", "stored"),
    [
        (["--logger.wandb.key", SECRET, "--x", "1"], ["--logger.wandb.key", REDACTED, "--x", "1"]),
        ([f"--logger.wandb.key={SECRET}"], [f"--logger.wandb.key={REDACTED}"]),
        ([f"--logger.wandb.key={SECRET}", "next"], [f"--logger.wandb.key={REDACTED}", "next"]),
        (["--logger.wandb.k", SECRET], ["--logger.wandb.k", REDACTED]),  # argparse takes beginnings of flags
        (["--data.input_key", "prompt"], ["--data.input_key", "prompt"]),
        (["--data.label_key=answer"], ["--data.label_key=answer"]),
        (
            ["--reward.remote_url", f"http://me:{SECRET}@host:5000/r"],
            ["--reward.remote_url", f"http://{REDACTED}@host:5000/r"],
        ),
        ([f"--reward.remote_url=https://{SECRET}@host/r"], [f"--reward.remote_url=https://{REDACTED}@host/r"]),
        (["--data.prompt_dataset", "me/data@split"], ["--data.prompt_dataset", "me/data@split"]),
    ],
)
def test_a_stored_command_line_has_no_secret_and_all_the_rest(argv, stored):
    values = {"logger.wandb.key": SECRET, "data.input_key": "prompt"}
    hide_secrets(values)
    assert redacted_argv(argv, values) == stored


def test_without_a_secret_a_command_line_is_stored_as_it_is():
    assert redacted_argv(["--a", "", "b"], {"logger.wandb.key": None, "x": 1}) == ["--a", "", "b"]
    assert redacted_argv(["--a", "", "b"], {"logger.wandb.key": Secret("")}) == ["--a", "", "b"]


def test_two_addresses_in_one_flag_both_lose_their_credentials():
    url = f"http://a:{SECRET}@one/x,http://b:{SECRET}@two/y"
    assert redacted(url) == f"http://{REDACTED}@one/x,http://{REDACTED}@two/y"


def test_nested_arguments_become_plain_json_without_secrets():
    args = SimpleNamespace(
        logger=SimpleNamespace(wandb=SimpleNamespace(key=Secret(SECRET), org=None)),
        reward=SimpleNamespace(remote_url=[f"http://me:{SECRET}@host/r"], clip_range=(-10, float("inf"))),
        data=SimpleNamespace(input_key="prompt"),
        lr=1e-6,
        flag=True,
    )
    found = redacted(args)
    assert found == {
        "logger": {"wandb": {"key": REDACTED, "org": None}},
        "reward": {"remote_url": [f"http://{REDACTED}@host/r"], "clip_range": [-10, "inf"]},
        "data": {"input_key": "prompt"},
        "lr": 1e-6,
        "flag": True,
    }
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert args.logger.wandb.key == SECRET


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_has_no_name_for_become_text(value):
    json.dumps(redacted({"x": value}), allow_nan=False)
