"""Old launch scripts: every flag of the published releases means after translation what it meant there."""

import argparse
import json
from pathlib import Path

import pytest

from openrlhf_ebpo.command import parse
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.train import driver, old_flags
from openrlhf_ebpo.train.flags import build_parser
from openrlhf_ebpo.train.old_flags import TABLE, translate
from openrlhf_ebpo.train.upstream_main import UpstreamMain

LISTS = Path(__file__).parents[1] / "data" / "openrlhf_flags"
TYPES = {"int": int, "float": float, "str": str, None: None}
ACTIONS = {"Store": "store", "StoreTrue": "store_true"}
EBPO = "--advantage_estimator"


def flags_of(release: str) -> dict[str, dict]:
    return {flag["flag"]: flag for flag in json.loads((LISTS / f"{release}.json").read_text())}


RELEASES = {release: flags_of(release) for release in ("0.5.9.post1", "0.6.4", "0.8.11", "0.9.3", "0.10.1")}
NEW = flags_of("0.11.2")
OLD = [(release, flag) for release in ("0.9.3", "0.10.1") for flag in RELEASES[release]]


def old_parser(release: str) -> argparse.ArgumentParser:
    """The parser of a release, rebuilt from its list."""
    parser = argparse.ArgumentParser()
    for flag in RELEASES[release].values():
        more = {}
        if flag["action"] == "Store":
            more = {"type": TYPES[flag["type"]], "nargs": flag["nargs"], "choices": flag["choices"]}
        parser.add_argument(flag["flag"], action=ACTIONS[flag["action"]], default=flag["default"], **more)
    return parser


@pytest.fixture(scope="module")
def parser():
    return build_parser(UpstreamMain(driver.MODULE))


@pytest.fixture
def new(parser):
    """The values that a command has after translation, by flag."""
    return lambda argv: {f"--{k}": v for k, v in vars(parse(parser, translate(argv)[0])).items()}


def sample(flag: dict) -> list[str]:
    """Values that are not defaults, as many as the flag takes."""
    if flag["action"] == "StoreTrue":
        return []
    values = [v for v in flag["choices"] or [] if v != flag["default"]]
    values = values or {"int": ["7", "9"], "float": ["0.125", "0.75"], "str": ["some/thing", "other"]}[flag["type"]]
    count = 2 if flag["nargs"] == "*" else flag["nargs"] or 1
    return values[:count]


def plain(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(("release", "flag"), OLD)
def test_each_flag_sets_what_it_set(release, flag, new):
    typed = [flag, *sample(RELEASES[release][flag])]
    wanted = vars(old_parser(release).parse_args(typed))[flag[2:]]
    row = TABLE[flag]
    if row.kind == "dropped":
        assert translate(typed)[0] == []
        assert flag in "".join(translate(typed)[1])
    elif row.kind == "to":
        found = new(typed)
        for name in row.new:
            name = "--algo.advantage.estimator" if name == EBPO else name
            assert plain(found[name]) == wanted
    else:
        assert row.kind == "combined"  # each has tests of its own below
        new(typed)


def test_every_row_is_a_flag_that_existed_and_leads_to_flags_that_exist():
    later = {"--algo.advantage.is_correction_enable", "--algo.advantage.is_correction_type"}  # 0.10.2 to 0.11.1
    never = {"--vllm_enable_is_correction"}
    assert set(TABLE) == {flag for flags in RELEASES.values() for flag in flags} | later | never
    assert {flag for row in TABLE.values() for flag in row.new} <= {*NEW, EBPO}
    for flag, row in TABLE.items():
        assert bool(row.new) == (row.kind in ("to", "set", "combined")), flag
        assert row.note or row.kind == "to", flag


def test_a_command_of_new_flags_is_left_as_it_is():
    argv = ["--actor.model_name_or_path", "m", "--advantage_estimator", "ebpo", "--force", "--dry_run", "--use_ms", "x"]
    assert translate(argv) == (argv, [])
    assert translate([]) == ([], [])


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("--pretrain=a=b --force", "--actor.model_name_or_path=a=b --force"),
        ("--l2 0.1", "--actor.adam.weight_decay 0.1 --critic.adam.weight_decay 0.1"),
        ("--adam_betas 0.9 0.98", "--actor.adam.betas 0.9 0.98 --critic.adam.betas 0.9 0.98"),
        ("--reward_clip_range -1 -.5", "--reward.clip_range -1 -.5"),
        ("--input_template=--{}", "--data.input_template=--{}"),
        ("--ref_reward_offload --force", "--ref.offload --reward.offload --force"),
        ("--target_modules q v --seed 1", "--ds.lora.target_modules q v --train.seed 1"),
        ("--bf16 --flash_attn", "--ds.param_dtype bf16 --ds.attn_implementation flash_attention_2"),
        ("--use_kl_estimator_k3", "--algo.kl.estimator k3"),
        ("--seed 1 --seed 2", "--train.seed 1 --train.seed 2"),
        ("--ptx_coef=0.1 --seed 1", "--train.seed 1"),
    ],
)
def test_words_are_replaced_and_values_stay(typed, wanted):
    assert translate(["--max_len", "9", *typed.split()])[0] == [*wanted.split(), "--data.max_len", "9"]


def test_a_value_with_a_blank_is_no_flag():
    argv = ["--input_template", "--pretrain {} now", "--max_len", "5"]
    assert translate(argv)[0][:2] == ["--data.input_template", "--pretrain {} now"]


def test_the_last_of_a_repeated_flag_wins(new):
    assert new(["--n_samples_per_prompt", "4", "--n_samples_per_prompt=8"])["--rollout.n_samples_per_prompt"] == 8
    assert new(["--generate_max_len", "4", "--generate_max_len=8"])["--rollout.max_new_tokens"] == 8


@pytest.mark.parametrize(
    ("typed", "total", "response"),
    [
        ("--prompt_max_len 512 --generate_max_len 4096", 4608, 4096),
        ("--prompt_max_len 512", 1536, 1024),
        ("--generate_max_len=512", 1536, 512),
        ("--generate_max_len 512 --max_len 9000", 1536, 512),
        ("--prompt_max_len 512 --rollout.max_new_tokens 8", 520, 8),
        ("--generate_max_len 512 --data.max_len 4096", 4096, 512),
        ("--max_len 4096 --max_new_tokens 1024", 4096, 1024),
        ("--max_len 4096", 4096, None),
        ("--pretrain m", 2048, None),
    ],
)
def test_lengths(typed, total, response, new):
    found = new(typed.split())
    assert (found["--data.max_len"], found["--rollout.max_new_tokens"]) == (total, response)


def test_what_0_9_took_for_granted_is_set(new):
    found = new(["--prompt_max_len", "5", "--micro_train_batch_size", "2"])
    assert (found["--train.micro_batch_size"], found["--rollout.micro_batch_size"]) == (2, 8)
    assert new(["--prompt_max_len", "5", "--train.micro_batch_size", "3"])["--train.micro_batch_size"] == 3
    assert new(["--max_new_tokens", "5"])["--train.micro_batch_size"] == 1


@pytest.mark.parametrize(
    ("typed", "level", "mode"),
    [
        ("", "token", "clip"),
        ("--vllm_is_correction_type tis", "token", "clip"),
        ("--vllm_is_correction_type=icepop", "token", "mask"),
        ("--vllm_is_correction_type mis", "seq", "mask"),
        ("--vllm_is_correction_type seq-mask-tis", "seq", "mask"),
    ],
)
def test_importance_sampling_schemes(typed, level, mode, new):
    found = new(["--enable_vllm_is_correction", *typed.split(), "--vllm_is_truncated_threshold", "0.5", "2"])
    assert found["--algo.advantage.is_correction_level"] == level
    assert found["--algo.advantage.is_correction_mode"] == mode
    assert found["--algo.advantage.is_correction_threshold"] == [0.5, 2.0]


@pytest.mark.parametrize(
    ("typed", "level", "mode"),
    [
        ("--vllm_enable_is_correction", "token", "clip"),
        ("--algo.advantage.is_correction_enable", "token", "clip"),
        ("--algo.advantage.is_correction_enable --algo.advantage.is_correction_type icepop", "token", "mask"),
        ("--algo.advantage.is_correction_type=seq-mask-tis --algo.advantage.is_correction_enable", "seq", "mask"),
        ("--algo.advantage.is_correction_type icepop", "off", "mask"),
    ],
)
def test_spellings_between_0_10_and_0_11_1_and_the_one_that_never_was(typed, level, mode, new):
    found = new([*typed.split(), "--algo.advantage.is_correction_threshold", "0.5", "2"])
    assert (found["--algo.advantage.is_correction_level"], found["--algo.advantage.is_correction_mode"]) == (
        level,
        mode,
    )
    assert found["--algo.advantage.is_correction_threshold"] == [0.5, 2.0]
    notices = translate(typed.split())[1]
    assert not [notice for notice in notices if "length" in notice and "." in typed]
    dropped = "--algo.advantage.is_correction_type is dropped: without --algo.advantage.is_correction_enable"
    assert any(dropped in notice for notice in notices) == (level == "off")


def test_a_scheme_that_is_not_enabled_stays_off(new):
    argv = ["--vllm_is_correction_type", "icepop"]
    assert new(argv)["--algo.advantage.is_correction_level"] == "off"
    assert any("--vllm_is_correction_type is dropped" in notice for notice in translate(argv)[1])


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("--pretrain a --actor.model_name_or_path b", "--pretrain and --actor.model_name_or_path both set"),
        ("--actor.model_name_or_path b --pretrain a", "--actor.model_name_or_path and --pretrain both set"),
        ("--l2 0 --critic.adam.weight_decay 0", "both set --critic.adam.weight_decay"),
        ("--prompt_max_len 8 --data.max_len 9", "both set --data.max_len: give only one"),
        ("--generate_max_len 8 --max_new_tokens 9", "both set --rollout.max_new_tokens"),
        ("--bf16 --param_dtype fp16", "--bf16 and --param_dtype both set --ds.param_dtype"),
        ("--enable_vllm_is_correction --algo.advantage.is_correction_level seq", "is_correction_level"),
        ("--algo.advantage.is_correction_enable --algo.advantage.is_correction_level seq", "both set"),
        ("--algo.advantage.is_correction_type best", "--algo.advantage.is_correction_type is 'best'; OpenRLHF had tis"),
        ("--pretrain_data x --pretrain_split y", "--pretrain_split of an older OpenRLHF is gone"),
        ("--prompt_max_len 1e3", "--prompt_max_len is '1e3'; give one whole number"),
        ("--generate_max_len", "--generate_max_len takes 1 value, 0 given"),
        ("--perf 1", "--perf takes no values, 1 given"),
        ("--vllm_is_correction_type best", "--vllm_is_correction_type is 'best'; OpenRLHF had tis, icepop"),
    ],
)
def test_what_cannot_be_translated_is_an_error_that_says_so(typed, shown):
    with pytest.raises(UsageError) as error:
        translate(typed.split())
    assert shown in str(error.value)


def test_no_notice_holds_a_value_of_the_users():
    argv = ["--use_wandb", "SECRET", "--remote_rm_url", "http://me:SECRET@host", "--ptx_coef", "0.1"]
    words, notices = translate(argv)
    assert words[:2] == ["--logger.wandb.key", "SECRET"]
    assert "SECRET" not in "".join(notices)
    assert "note: --ptx_coef is dropped" in "\n".join(notices)


def test_the_printed_command_can_be_pasted():
    import shlex

    argv = ["--data.input_template", "a {}'s\n", "--dry_run", "--train.seed", "1"]
    printed = old_flags.shell_command(argv, "python -m m")
    assert shlex.split(printed.replace(" \\\n", " ")) == ["python", "-m", "m", *argv[:2], *argv[3:]]
