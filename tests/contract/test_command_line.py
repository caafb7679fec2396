"""Upstream's command lines, cut from its own source: same flags, its own validation, errors of one line."""

import argparse
import json
import pickle
import re
import runpy
import shutil
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import save_checkpoint

from openrlhf_ebpo.command import parse
from openrlhf_ebpo.data import difficulty, order
from openrlhf_ebpo.data.preflight import InputFiles
from openrlhf_ebpo.engines import engines
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator.config import PRESETS, EstimatorConfig
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.redact import Secret
from openrlhf_ebpo.rewards import reward_settings
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.train import driver
from openrlhf_ebpo.train.flags import Command, build_parser, fill_defaults
from openrlhf_ebpo.train.supervisor.link import SupervisorLink
from openrlhf_ebpo.train.supervisor.restarts import how_to_continue
from openrlhf_ebpo.train.upstream_main import UpstreamMain
from openrlhf_ebpo.upstream.stack import is_cpu_stack

PPO, SFT = "openrlhf.cli.train_ppo_ray", "openrlhf.cli.train_sft"


class Caught(Exception):
    pass


@pytest.fixture
def upstreams_parser(monkeypatch):
    """The parser that `python -m MODULE` builds, caught where it would parse."""

    def catch(module: str) -> argparse.ArgumentParser:
        def parse_args(self, *_args, **_kwargs):
            raise Caught(self)

        with monkeypatch.context() as patch:
            patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
            patch.delitem(sys.modules, module, raising=False)
            with pytest.raises(Caught) as caught:
                runpy.run_module(module, run_name="__main__")
        return caught.value.args[0]

    return catch


def flags(parser: argparse.ArgumentParser) -> dict[str, tuple]:
    """By first name; the default of run_name holds the time of day."""
    return {
        action.option_strings[0]: (
            action.dest,
            type(action).__name__,
            action.nargs,
            action.type,
            "a time" if action.dest.endswith("run_name") else action.default,
            action.required,
        )
        for action in parser._actions
    }


@pytest.mark.parametrize("module", [PPO, SFT])
def test_every_flag_of_upstreams_is_there_and_no_other(module, upstreams_parser):
    theirs, ours = upstreams_parser(module), UpstreamMain(module).parser("x")
    assert len(flags(theirs)) > 50
    assert flags(ours) == flags(theirs)
    assert [action.choices for action in ours._actions] == [action.choices for action in theirs._actions]


def test_our_flags_change_none_of_upstreams(upstreams_parser):
    ours, theirs = flags(build_parser(UpstreamMain(PPO))), flags(upstreams_parser(PPO))
    own = "--algo.advantage.estimator"  # takes more values: below
    assert {flag: ours[flag] for flag in theirs if flag != own} == {f: theirs[f] for f in theirs if f != own}


@pytest.mark.parametrize("command", [difficulty, engines, order, reward_settings])
def test_a_dotted_flag_of_another_command_is_trainings(command):
    """Name, kind and type; defaults may differ, since a training has others."""
    parser = argparse.ArgumentParser()
    command.add_flags(parser)
    theirs = flags(build_parser(UpstreamMain(PPO)))
    dotted = {name: kind for name, kind in flags(parser).items() if "." in name}
    assert dotted
    for name, (dest, kind, nargs, type_, *_) in dotted.items():
        assert theirs[name][:3] == (dest, kind, nargs) and (theirs[name][3] or str) is (type_ or str), name


@pytest.mark.parametrize("spelling", ["--advantage_estimator", "--algo.advantage.estimator"])
def test_the_estimator_has_both_spellings(spelling, upstreams_parser):
    parser = build_parser(UpstreamMain(PPO))
    assert vars(parse(parser, [spelling, "ebpo"]))["algo.advantage.estimator"] == "ebpo"
    theirs = next(a for a in upstreams_parser(PPO)._actions if a.dest == "algo.advantage.estimator")
    for name in (*theirs.choices, "ebpo", "my_package.my_module:Mine"):
        assert vars(parse(parser, [spelling, name]))["algo.advantage.estimator"] == name


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model.build(folder, ["1+1"], max_position_embeddings=4096)
    return folder


@pytest.fixture
def command(tmp_path, monkeypatch, model) -> list[str]:
    """A minimal good command line, its files in place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    (tmp_path / "data.jsonl").write_text(json.dumps({"input": "1+1", "label": "2"}) + "\n")
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': 1.0}\n")
    shutil.copytree(model, tmp_path / "model")
    return [
        *("--actor.model_name_or_path", "model"),
        *("--data.prompt_dataset", "data.jsonl"),
        *("--reward.remote_url", "reward.py"),
        *("--advantage_estimator", "ebpo"),
        *("--rollout.n_samples_per_prompt", "4"),
        *("--vllm.num_engines", "1"),
    ]


def validated(argv: list[str]) -> SimpleNamespace:
    main = UpstreamMain(PPO)
    args = Command.parse(main, argv).args
    fill_defaults(args)
    return main.validate(args)


def test_a_good_command_comes_out_nested_and_validated(command, tmp_path):
    args = validated(command)
    assert args.actor.model_name_or_path == str(tmp_path / "model")
    assert args.reward.remote_url == [str(tmp_path / "reward.py")]
    assert args.actor.eps_clip_low_high == (args.actor.eps_clip, args.actor.eps_clip)
    assert args.critic.model_name_or_path is None
    assert args.rollout.vllm_generate_batch_size == args.rollout.batch_size
    assert vars(args.algo.advantage.ebpo) == {
        "preset": "paper",
        "fail_reward": 0.0,
        "pass_reward": 1.0,
        "reset_prior": False,
        "init_prior": None,
        "reward_clip_range": None,
        "half_life": None,
        "clusters": None,
    }
    assert args.logger.run_dir.startswith(str(tmp_path))


def test_a_variant_is_a_name_and_a_half_life_changes_its_history(command):
    argv = [*command, "--advantage_estimator", "ebpo.revision", "--algo.advantage.ebpo.half_life", "512"]
    args = validated(argv)
    assert (args.algo.advantage.estimator, args.algo.advantage.ebpo.preset) == ("ebpo", "revision")
    parts = EstimatorConfig.from_args(args).variant()
    assert parts == {**PRESETS["revision"], "history": "half_life", "half_life": 512.0}


def test_parts_that_change_nothing_are_named(command, capsys):
    clusters = ["--algo.advantage.ebpo.clusters", "cluster", "--dry_run"]
    driver.main([*command, *clusters])
    assert "'cluster' (--data.cluster_key)" in capsys.readouterr().out
    driver.main([*command, *clusters, "--data.cluster_key", "label"])
    assert "warning: --algo.advantage.ebpo.clusters" not in capsys.readouterr().out
    driver.main([*command, *clusters, "--advantage_estimator", "group_norm"])
    assert "warning: --algo.advantage.ebpo.clusters" in capsys.readouterr().out


PARALLEL = [
    *("--vllm.tensor_parallel_size", "2"),
    *("--ds.ring_attn_size", "2"),
    *("--actor.num_gpus_per_node", "4", "--ref.num_gpus_per_node", "2"),
    *("--ds.attn_implementation", "flash_attention_2"),
]


def test_a_dry_run_for_a_machine_with_gpus_changes_nothing_for_this_one(command, capsys):
    with pytest.raises(SystemExit, match=r"--vllm.tensor_parallel_size: use more engines"):
        driver.main([*command, *PARALLEL, "--dry_run"])
    capsys.readouterr()
    driver.main([*command, *PARALLEL, "--dry_run", "--verbose", "--assume_cuda", "80"])
    said = capsys.readouterr().out
    assert (
        "checked as for a machine with GPUs: 8, of 80 GB" in said
    )  # 4 of the policy, 2 of the reference, an engine of 2
    assert '"attn_implementation": "flash_attention_2"' in said and '"sync_backend": "nccl"' in said
    assert "no CUDA" not in said and "not checked for it: its libraries and drivers" in said
    driver.main([*command, *PARALLEL, "--dry_run", "--assume_cuda"])
    assert "checked as for a machine with GPUs: 8\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--verbose"], "--verbose goes with --dry_run"),
        (["--assume_cuda"], "--assume_cuda goes with --dry_run"),
        (["--assume_cuda", "--dry_run", "--sample"], "--sample starts an engine on this one"),
        (["--assume_cuda", "-8", "--dry_run"], "--assume_cuda is -8; give the memory of one GPU in GB"),
    ],
)
def test_a_check_for_another_machine_starts_nothing(command, flags, shown):
    with pytest.raises(SystemExit, match=re.escape(shown)):
        driver.main([*command, *flags])


@pytest.mark.parametrize("given", [("-10", "10"), ("0", "1")])
def test_only_a_clip_range_that_was_typed_applies_under_ebpo(command, given):
    assert validated(command).reward.clip_range == (-10, 10)
    args = validated([*command, "--reward.clip_range", *given])
    assert args.algo.advantage.ebpo.reward_clip_range == tuple(map(float, given))


@pytest.mark.parametrize(
    ("extra", "shown"),
    [
        (["--train.partial_rollout_enable"], "--train.partial_rollout_enable requires --train.async_enable"),
        (["--advantage_estimator", "rloo", "--rollout.n_samples_per_prompt", "1"], "n_samples_per_prompt > 1"),
        (["--rollout.vllm_generate_batch_size", "99999"], "requires --train.async_enable"),
        (["--algo.advantage.is_correction_threshold", "1", "2", "3"], "is_correction_threshold"),
        (["--actor.num_gpus_per_node", "100000"], "number of sample batches"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_upstream_refuses_is_a_usage_error_with_its_words(command, extra, shown):
    with pytest.raises(UsageError) as error:
        validated([*command, *extra])
    assert "OpenRLHF refuses this combination of flags" in str(error.value)
    assert shown in str(error.value)


def test_validating_twice_gives_the_same(command):
    """Upstream's validation changes a default list in place when one threshold is given."""
    argv = [*command, "--algo.advantage.is_correction_threshold", "3"]
    assert validated(argv).algo.advantage.is_correction_threshold == [0.0, 3.0]
    assert validated(argv).algo.advantage.is_correction_threshold == [0.0, 3.0]


def test_sft_is_validated_too():
    main = UpstreamMain(SFT)
    args = main.validate(parse(main.parser("x"), ["--model.model_name_or_path", "m", "--data.dataset", "d"]))
    assert (args.model.model_name_or_path, args.data.dataset) == ("m", "d")
    with pytest.raises(UsageError, match="apply_chat_template must be enabled"):
        main.validate(parse(main.parser("x"), ["--data.multiturn"]))


@pytest.mark.parametrize("flag", ["--logger.wandb.key", "--logger.wandb.k"])
def test_a_secret_is_never_stored_whatever_its_flag_is_shortened_to(command, flag):
    """argparse takes any unambiguous beginning of a flag."""
    argv = [*command, flag, "0123SECRET"]
    try:
        parsed = Command.parse(UpstreamMain(PPO), argv)
    except SystemExit:
        return  # a command line that is refused stores nothing
    assert isinstance(parsed.args.logger.wandb.key, Secret)
    assert "0123SECRET" not in " ".join(parsed.recorded)


def test_a_dry_run_prints_the_configuration_without_secrets_and_starts_nothing(command, capsys, tmp_path):
    import ray

    logs = ["--logger.no_policy_metrics", "--data.label_key", "label"]
    driver.main([*command, *logs, "--logger.wandb.key", "0123SECRET", "--dry_run", "--verbose"])
    out = capsys.readouterr().out
    printed, _ = json.JSONDecoder().raw_decode(out[out.index("{") :])
    assert printed["algo"]["advantage"]["estimator"] == "ebpo"
    assert printed["logger"]["wandb"]["key"] == "<redacted>"
    assert printed["logger"]["no_policy_metrics"] is True
    assert "0123SECRET" not in out
    assert "reward: 1 of 1 labels earn 1" in out and "nothing was started" in out
    assert not ray.is_initialized()
    assert {p.name for p in tmp_path.iterdir()} - {"__pycache__"} == {"data.jsonl", "model", "reward.py"}


def test_a_dry_run_ends_with_what_the_training_would_do(command, capsys, tmp_path):
    rows = [json.dumps({"input": f"1+{n}", "label": "2"}) + "\n" for n in range(40)]
    (tmp_path / "data.jsonl").write_text("".join(rows))
    flags = "--rollout.batch_size 16 --train.batch_size 32 --train.micro_batch_size 4 --train.num_episodes 2"
    flags += " --ckpt.save_steps 2 --ckpt.max_num 2 --ckpt.save_hf --eval.steps 3 --eval.dataset data.jsonl"
    driver.main([*command, *flags.split(), "--dry_run"])
    out = capsys.readouterr().out
    assert '"argv"' not in out and "{" not in out.partition("plan:")[2].partition("dry run:")[0]
    for line in (
        "prompts       40 in the data set, 16 a step",
        "steps         6 in 2 episodes",
        "responses     320, 4 a prompt",
        "optimizer     about 10 steps of --train.batch_size 32 responses",
        "checkpoints   3, the newest 2 are kept; each exports a model, and the end exports one",
        "evaluations   2 of 40 prompts x 4",
        "for 2 checkpoints and 4 models",
    ):
        assert line in out, (line, out)
    driver.main([*command, "--dry_run"])
    assert "warning: --rollout.batch_size 1024 is larger than the data set of 40 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "shown"),
    [
        (["--rollout.n_samples_per_prompt", "1"], "--rollout.n_samples_per_prompt is 1"),
        (["--vllm.num_engines", "0"], "--vllm.num_engines"),
        (["--actor.clip_cov.bounds", "5", "1"], "--actor.clip_cov.bounds 5"),
        (["--logger.rollouts_every", "0"], "--logger.rollouts_every is 0"),
        (["--ckpt.load_step", "0"], "--ckpt.load_step is 0"),
        (["--ckpt.load_step", "3"], "--ckpt.load_step 3: no complete checkpoint of this step is in"),
        (["--algo.advantage.ebpo.pass_reward", "-1"], "--algo.advantage.ebpo.pass_reward"),
        (["--algo.advantage.ebpo.half_life", "0"], "--algo.advantage.ebpo.half_life is 0"),
        (["--data.label_key", "answer"], "has no column 'answer' (--data.label_key)"),
        (["--logger.run_dir", "data.jsonl"], "--logger.run_dir"),
        (["--reward.timeout", "0"], "--reward.timeout is 0.0"),
        (["--algo.advantage.ebpo.init_prior", "reward.py"], "reward.py cannot be read as a prior"),
        (["--sample", "0"], "--sample is 0; give 1 or more prompts"),
        pytest.param(
            ["--train.enable_ema"],
            "--train.enable_ema: OpenRLHF averages weights on a GPU (this machine has no CUDA)",
            marks=pytest.mark.skipif(not is_cpu_stack(), reason="needs a CPU build of torch"),
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_mistake_ends_in_one_line_and_no_traceback(command, capsys, extra, shown):
    with pytest.raises(SystemExit) as end:
        driver.main([*command, *extra, "--dry_run"])
    assert str(end.value).startswith("error: ")
    assert shown in str(end.value)


def test_the_supervisor_learns_why_a_start_was_refused(command):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with pytest.raises(SystemExit):
        driver.main([*command, "--train.max_restarts", "-1"], SupervisorLink(theirs, None, []))
    error = "--train.max_restarts is -1; give 0 or more"
    assert pickle.loads(ours.recv(4096)) == ("end", {"status": "failed", "error": error, "final": True})


@pytest.mark.parametrize("more", [[], ["--dry_run"]], ids=["start", "dry run"])
def test_labels_and_functions_that_no_training_can_use_are_refused_before_it_starts(command, tmp_path, more):
    (tmp_path / "data.jsonl").write_text(json.dumps({"input": "1+1", "label": ""}) + "\n")
    (tmp_path / "signature.py").write_text("def reward_func(prompts, completions): return 1.0\n")
    for reward, found in (("math", "1 of 1 labels (column 'label'"), ("signature.py", "(prompts, completions)")):
        argv = [*command, "--reward.remote_url", reward, "--data.label_key", "label", "--logger.run_dir", "run"]
        with pytest.raises(SystemExit) as end:
            driver.main([*argv, *more])
        assert found in str(end.value) and not (tmp_path / "run").exists()


def test_help_teaches_our_flags_and_upstreams(capsys):
    with pytest.raises(SystemExit):
        driver.main(["--help"])
    text = capsys.readouterr().out
    for part in ("openrlhf-ebpo train [flags]", "--algo.advantage.ebpo.half_life", "--rollout.n_samples_per_prompt"):
        assert part in text


def test_a_resume_is_told_before_anything_starts(command, capsys, tmp_path):
    """From the newest complete checkpoint, or from the requested step; with the changed settings."""
    for step in (4, 8):
        folder = save_checkpoint(tmp_path / "ckpt", step, b"x" * 100, settings={"actor.adam.lr": 5e-6})
    (folder / "mp_rank_00_model_states.pt").write_bytes(b"x" * 99)
    argv = [*command, "--ckpt.path", "ckpt", "--dry_run", "--verbose"]
    for more in (["--ckpt.load_enable"], ["--ckpt.load_step", "4"]):
        driver.main([*argv, "--actor.adam.lr", "1e-4", *more])
        out = capsys.readouterr().out
        printed, _ = json.JSONDecoder().raw_decode(out[out.index("{") :])
        assert "resuming from global_step4 of" in out and ("global_step8 is skipped" in out) == (
            more == ["--ckpt.load_enable"]
        )
        assert "5e-06 applies, which the optimizer in the checkpoint keeps" in out
        assert printed["actor"]["adam"]["lr"] == 5e-6 and printed["ckpt"]["load_enable"] is True
    with pytest.raises(SystemExit, match=r"global_step8: .*99 bytes, and 100 were saved; saved steps: 4$"):
        driver.main([*argv, "--ckpt.load_step", "8"])
    manifest.complete(folder.with_name("global_step4"), data={"rows": 9999, "sha256": ""})
    with pytest.raises(SystemExit, match=r"is not what global_step4 was trained on: 9999 rows then"):
        driver.main([*argv, "--ckpt.load_enable"])


def test_checksums_are_compared_before_a_start_and_not_in_a_dry_run(command, tmp_path, monkeypatch):
    """A checkpoint of hundreds of GB is read once before DeepSpeed reads it; its sizes are always compared."""
    started = []
    monkeypatch.setattr(driver, "train", lambda *given: started.append(given[-2]))
    monkeypatch.setattr(InputFiles, "check_models_fetched", lambda self: None)
    for step in (4, 8):
        folder = save_checkpoint(tmp_path / "ckpt", step, b"x" * 100)
    (folder / "mp_rank_00_model_states.pt").write_bytes(b"x" * 99 + b"y")
    argv = [*command, "--ckpt.path", "ckpt", "--ckpt.load_enable"]
    reads, crc32 = [], manifest._crc32
    monkeypatch.setattr(manifest, "_crc32", lambda path: reads.append(path.parent.name) or crc32(path))
    driver.main([*argv, "--dry_run"])
    assert reads == [] and started == []
    driver.main(argv)
    (found,) = started
    assert found.tag == "global_step4" and reads == ["global_step8", "global_step4"]


def test_a_run_that_has_lost_its_checkpoints_does_not_begin_again(command, tmp_path, capsys):
    folder = tmp_path / "ckpt" / "_actor" / "global_step4"
    argv = [*command, "--ckpt.path", "ckpt", "--logger.run_dir", "run", "--ckpt.load_enable", "--dry_run", "--verbose"]
    driver.main(argv)
    out = capsys.readouterr().out
    args, _ = json.JSONDecoder().raw_decode(out[out.index("{\n") :])
    run = {"schema": 1, "status": "interrupted", "argv": [], "args": args}
    write_json(tmp_path / "run" / "run.json", run)
    for step in (1, 2, 3, 4, 5):
        append_json_line(tmp_path / "run" / "metrics.jsonl", {"step": step})
    driver.main(argv)  # it was killed before its first save
    assert "no checkpoint is complete in " in capsys.readouterr().out
    row = {"step": 4, "tag": "global_step4", "checkpoint": str(folder), "model": None}
    append_json_line(tmp_path / "run" / "checkpoints.jsonl", row)
    with pytest.raises(SystemExit, match=r"5 steps .* global_step4"):
        driver.main(argv)
    driver.main([*argv, "--force"])
    save_checkpoint(tmp_path / "ckpt", 4)
    driver.main(argv)


def test_a_step_that_was_asked_for_is_not_asked_for_again(tmp_path):
    save_checkpoint(tmp_path, 4)
    can, how = how_to_continue(RunSettings(tmp_path / "run", tmp_path, load_step=2), save_steps=1)
    assert can and "without --ckpt.load_step" in how
