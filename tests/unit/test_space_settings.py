"""Settings of runs as the page Configuration shows them."""

import pytest

from openrlhf_ebpo.space.compared_settings import command_of, compare_settings, settings_of

ARGS = {
    "actor": {"adam": {"lr": 9e-07, "betas": [0.9, 0.95]}, "gradient_checkpointing_enable": True, "aux": None},
    "ckpt": {"path": "/data/a", "save_hf": False},
    "data": {"input_template": "{}\n", "input_key": "prompt"},
    "logger": {"wandb": {"key": "0123456789abcdef0123456789abcdef01234567"}},
    "use_ms": False,
}


def about(**args) -> dict:
    return {"args": {**ARGS, **args}, "versions": {"torch": "2.9.0"}, "seed": 3, "status": "complete"}


def test_settings_are_flat_and_those_that_differ_are_known():
    found = {
        each.name: each
        for each in compare_settings([[settings_of(about())], [settings_of(about(ckpt={"path": "/data/b"}))]])
    }
    assert found["actor.adam.lr"].values == ("9e-07", "9e-07") and not found["actor.adam.lr"].differs
    assert len(set(found["ckpt.path"].values)) == 2 and not found["ckpt.path"].differs, "a place"
    assert found["ckpt.save_hf"].values == ("false", None) and found["ckpt.save_hf"].differs
    assert found["versions.torch"].values[0] == "2.9.0" and found["run.seed"].values[0] == "3"


@pytest.mark.parametrize(
    "argv",
    [
        *(["--hub.token", "SECRET"], ["--password", "SECRET"], ["--logger.wandb.key", "SECRET"], ["--api_key=SECRET"]),
        ["--reward.remote_url", "https://host/grade?token=SECRET"],
    ],
    ids=" ".join,
)
def test_secrets_of_a_foreign_run_are_not_shown(argv):
    name, _, value = "=".join(argv).removeprefix("--").partition("=")
    assert "SECRET" not in str(compare_settings([[settings_of({"args": {name: value, "more": {name: [value]}}})]]))
    assert "SECRET" not in command_of({"argv": argv})


def test_runs_of_one_configuration_are_one_column_and_the_estimator_comes_first():
    def run(seed: int, estimator: str, attempt: int) -> dict:
        advantage = {"estimator": estimator, "ebpo": {"preset": "paper"}}
        return settings_of(about(train={"seed": seed}, algo={"advantage": advantage}, ckpt={"attempt": attempt}))

    found = compare_settings([[run(seed, name, seed) for seed in range(10)] for name in ("ebpo", "group_norm")])
    assert found[0].name == "algo.advantage.estimator" and found[0].values == ("ebpo", "group_norm")
    assert [each.name for each in found if each.differs] == ["algo.advantage.estimator"]
    named = {each.name: each for each in found}
    assert "ckpt.attempt" not in named, "a number of the trainer's own"
    assert named["train.seed"].values[0].startswith("0, 1, 2") and len(named["train.seed"].values) == 2
    assert not named["actor.aux"].is_set, "null is folded"


def test_null_and_absent_are_no_difference():
    (setting,) = compare_settings([[{"a": None}], [{}]])
    assert setting.values == (None, None) and not setting.differs


def test_how_a_run_was_started_is_said():
    assert command_of({"argv": ["--a.b", "c d"]}) == "--a.b 'c d'"
    for odd in ({}, {"argv": {"a": 1}, "args": [1]}, {"argv": [1], "args": {"actor": 1}}):
        assert command_of(odd) == ""


def test_what_is_no_run_has_no_settings():
    for odd in ({}, {"args": [1], "versions": "x", "argv": {"a": 1}}, {"args": {"a": {}}}):
        assert len(settings_of(odd)) <= 1
    deep = {}
    for _ in range(300):
        deep = {"d": deep}
    assert len(settings_of({"args": deep})) == 1
    assert len(settings_of({"args": {str(i): i for i in range(10_000)}})) <= 3000
