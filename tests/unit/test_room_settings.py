"""Settings of a room are read once: defaults that depend on other flags, and one line for each number that makes no
sense."""

from types import SimpleNamespace

import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards.reward_settings import SERVER_TIMEOUT, TIMEOUT, RewardSettings
from openrlhf_ebpo.run.run_settings import RunSettings


@pytest.mark.parametrize(
    ("url", "timeout", "sources", "seconds"),
    [
        (None, None, (), TIMEOUT),
        ("reward.py", None, ("reward.py",), TIMEOUT),
        ("http://one/r,http://two/r", None, ("http://one/r", "http://two/r"), SERVER_TIMEOUT),
        (["http://one/r", "http://two/r"], None, ("http://one/r", "http://two/r"), SERVER_TIMEOUT),
        ("http://one/r", 5.0, ("http://one/r",), 5.0),
    ],
)
def test_sources_are_split_and_servers_have_more_time(url, timeout, sources, seconds):
    reward = SimpleNamespace(remote_url=url, timeout=timeout, memory=512, workers=2, overlong_buffer_len=8.0)
    rollout, train = SimpleNamespace(max_new_tokens=64), SimpleNamespace(agent_func_path=None)
    found = RewardSettings.from_args(SimpleNamespace(reward=reward, rollout=rollout, train=train))
    assert found == RewardSettings(sources, None, seconds, 512, 2, overlong=8.0, max_new_tokens=64)
    found.check()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"timeout": 0.0}, "--reward.timeout is 0.0; give a number of seconds above 0"),
        ({"timeout": float("nan")}, "--reward.timeout is nan"),
        ({"memory_mb": -1}, "--reward.memory is -1; give megabytes, or 0 for no limit"),
        ({"workers": 0}, "--reward.workers is 0; give 1 or more, or leave it out"),
        ({"overlong": 8.0}, "overlong_buffer_len 8 counts back from --rollout.max_new_tokens, which is not given: "),
        ({"overlong": 8.0, "max_new_tokens": 4}, "--rollout.max_new_tokens, which is 4: give that many tokens or more"),
    ],
    ids=str,
)
def test_a_limit_that_makes_no_sense_is_named_by_its_flag(wrong, message):
    with pytest.raises(UsageError, match=message):
        RewardSettings(**wrong).check()
    RewardSettings().check()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"load_step": 0}, "--ckpt.load_step is 0; give a step from 1 on"),
        ({"rollouts_every": 0}, "--logger.rollouts_every is 0; give 1 or more"),
    ],
    ids=str,
)
def test_a_number_of_a_run_that_makes_no_sense_is_named_by_its_flag(tmp_path, wrong, message):
    with pytest.raises(UsageError, match=message):
        RunSettings(tmp_path / "run", tmp_path, **wrong).check()


@pytest.mark.parametrize(
    ("load_enable", "load_step", "resume"), [(False, None, False), (True, None, True), (False, 4, True)]
)
def test_a_run_lies_in_the_output_folder_and_a_step_to_load_resumes(tmp_path, load_enable, load_step, resume):
    ckpt = SimpleNamespace(path=tmp_path, output_dir=tmp_path / "model", load_enable=load_enable, load_step=load_step)
    logger = SimpleNamespace(run_dir=None, rollouts_every=1, wandb=SimpleNamespace(run_name="r"))
    algo = SimpleNamespace(advantage=SimpleNamespace(estimator="ebpo"))
    settings = RunSettings.from_args(SimpleNamespace(ckpt=ckpt, logger=logger, algo=algo), force=True)
    assert (settings.run_dir, settings.resume, settings.force) == (tmp_path / "model" / "run", resume, True)
