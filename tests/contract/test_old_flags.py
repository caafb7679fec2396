"""Old launch scripts against the installed OpenRLHF: its flags are the listed ones, its validation takes the
scripts."""

import argparse
import importlib.util
import json
import shlex
from pathlib import Path

import pytest

from openrlhf_ebpo.command import parse
from openrlhf_ebpo.run import run_lock, run_start
from openrlhf_ebpo.run.run_log import close_run, read_run
from openrlhf_ebpo.train import driver
from openrlhf_ebpo.train.flags import build_parser
from openrlhf_ebpo.train.old_flags import TABLE, translate
from openrlhf_ebpo.train.upstream_main import UpstreamMain
from openrlhf_ebpo.upstream.releases import RECOMMENDED
from openrlhf_ebpo.upstream.stack import module_path

FLAGS = Path(__file__).parents[1] / "data" / "openrlhf_flags"
SCRIPTS = {"0.9.3": "grpo_hybrid_0.9.3.sh", "0.10.1": "reinforce_async_0.10.1.sh"}


@pytest.fixture(scope="module")
def extract():
    spec = importlib.util.spec_from_file_location("extract", FLAGS / "extract.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(release: str) -> list[dict]:
    return json.loads((FLAGS / f"{release}.json").read_text())


def script(release: str) -> list[str]:
    _, arguments = (FLAGS / SCRIPTS[release]).read_text().split("openrlhf.cli.train_ppo_ray")
    return shlex.split(arguments.replace("\\\n", " "))


def test_the_list_of_this_release_is_what_is_installed(extract):
    installed = extract.flags_of(extract.parser_of(module_path(driver.MODULE).read_text()))
    assert json.loads(json.dumps(installed)) == listed(RECOMMENDED)


def old_values(release: str) -> dict:
    """Parse the script with the release's own parser, defaults included."""
    parser = argparse.ArgumentParser()
    for flag in listed(release):
        more = {"type": {"int": int, "float": float, "str": str}[flag["type"]]} if flag["type"] else {}
        more |= {"nargs": flag["nargs"]} if flag["nargs"] else {}
        action = "store_true" if flag["action"] == "StoreTrue" else "store"
        parser.add_argument(flag["flag"], action=action, default=flag["default"], **more)
    return {f"--{name}": value for name, value in vars(parser.parse_args(script(release))).items()}


@pytest.mark.parametrize("release", SCRIPTS)
def test_a_whole_script_means_what_it_meant_defaults_included(release):
    parser = build_parser(UpstreamMain(driver.MODULE))
    found = vars(parse(parser, translate(script(release))[0]))
    old = old_values(release)
    compared = [(flag, new) for flag, row in TABLE.items() if row.kind == "to" and flag in old for new in row.new]
    assert len(compared) > 130
    for flag, new in compared:
        value = found["algo.advantage.estimator" if new == flag == "--advantage_estimator" else new[2:]]
        if flag == "--wandb_run_name" or (release == "0.9.3" and flag == "--max_ckpt_mem"):
            continue  # a time of day; a limit of 1e8 GB, now none
        wanted = float(old[flag]) if old[flag] == "inf" else old[flag]
        assert (list(value) if isinstance(value, tuple) else value) == wanted, flag


@pytest.mark.parametrize("release", SCRIPTS)
def test_upstreams_validation_takes_the_script_with_our_estimator(release):
    main = UpstreamMain(driver.MODULE)
    argv, _ = translate([*script(release), "--advantage_estimator", "ebpo"])
    args = main.validate(parse(build_parser(main), argv))
    assert args.algo.advantage.estimator == "ebpo"
    assert args.critic.model_name_or_path is None
    assert args.rollout.n_samples_per_prompt == 8
    correction = args.algo.advantage
    level = "seq" if release == "0.9.3" else "token"
    assert (correction.is_correction_level, correction.is_correction_mode) == (level, "mask")
    if release == "0.9.3":
        assert (args.data.max_len, args.rollout.max_new_tokens) == (5120, 4096)


@pytest.fixture
def old_command(tmp_path, monkeypatch) -> list[str]:
    """The script of 0.9.3 on files that are there, its model a name on the Hub; the last of a repeated flag counts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # nothing is fetched
    (tmp_path / "data.jsonl").write_text(json.dumps({"context_messages": "1+1", "label": "2"}) + "\n")
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': 1.0}\n")
    unfit = {"--packing_samples", "--vllm_enable_sleep", "--deepspeed_enable_sleep"}  # for a machine without CUDA
    return [
        *(word for word in script("0.9.3") if word not in unfit),
        *("--prompt_data", "data.jsonl", "--remote_rm_url", "reward.py"),
        *("--advantage_estimator", "ebpo", "--zero_stage", "2"),
        *("--vllm_tensor_parallel_size", "1", "--vllm_num_engines", "8"),
    ]


def test_a_dry_run_prints_the_new_command_without_secrets(old_command, capsys):
    driver.main([*old_command, "--dry_run"])
    out = capsys.readouterr().out
    assert out.startswith("note: ")
    assert "0123456789abcdef" not in out
    printed = out[out.index("python -m openrlhf_ebpo.cli.train_ppo_ray") :].partition("plan:")[0]
    words = shlex.split(printed.replace(" \\\n", " "))[3:]
    assert "--dry_run" not in words
    driver.main([*words, "--dry_run"])  # what was printed is a good command of today's
    assert not capsys.readouterr().out.startswith("note: ")


def test_old_and_new_spelling_are_the_same_run(old_command, tmp_path, monkeypatch, capsys):
    """A finished run is recognised in either spelling: nothing is left to do."""

    def train(supervisor, upstream, command, args, settings, found, resumed):
        for lock in run_start.claim(settings.run, **driver.run_entries(command, args, resumed)):
            run_lock.release(lock)

    monkeypatch.setattr(driver, "train", train)
    driver.main(old_command)
    run_dir = next(tmp_path.rglob("run.json")).parent
    stored = read_run(run_dir)["argv"]
    assert stored[:2] == ["--ref.num_nodes", "1"]
    assert "--pretrain" not in stored
    assert read_run(run_dir)["instruction"] == {"template": "{question}", "system": None}
    close_run(run_dir, "complete")
    for argv in (old_command, [word.replace("<redacted>", "0123456789abcdef") for word in stored]):
        with pytest.raises(SystemExit, match="with these very settings: nothing is left to do"):
            driver.main([*argv, "--ckpt.load_enable"])
