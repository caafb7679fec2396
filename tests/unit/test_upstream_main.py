"""Mistyped flags are answered with the near ones; the cut of upstream's __main__ holds its shape."""

import argparse
import ast

import pytest

from openrlhf_ebpo.command import parse
from openrlhf_ebpo.errors import SeamError
from openrlhf_ebpo.train import upstream_main


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser(prog="train")
    parser.add_argument("--rollout.n_samples_per_prompt", type=int, default=1)
    parser.add_argument("--actor.adam.lr", type=float, default=1e-6)
    parser.add_argument("--critic.adam.lr", type=float, default=1e-6)
    parser.add_argument("--algo.advantage.estimator", type=str, default="gae")
    parser.add_argument("--logger.wandb.key", type=str, default=None)
    return parser


def refused(parser, capsys, *argv) -> str:
    with pytest.raises(SystemExit) as error:
        parse(parser, list(argv))
    assert error.value.code == 2
    captured = capsys.readouterr()
    assert not captured.out
    return captured.err


def test_known_flags_are_parsed(parser):
    args = parse(parser, ["--rollout.n_samples_per_prompt", "4", "--actor.adam.lr=1e-5"])
    assert vars(args)["rollout.n_samples_per_prompt"] == 4
    assert vars(args)["actor.adam.lr"] == 1e-5


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--rollout.n_sample_per_prompt", "4"], ["--rollout.n_sample_per_prompt", "--rollout.n_samples_per_prompt"]),
        (["--n_samples_per_prompt", "4"], ["Did you mean --rollout.n_samples_per_prompt?"]),
        (["--n-samples-per-prompt=4"], ["no such flag: --n-samples-per-prompt.", "--rollout.n_samples_per_prompt"]),
        (["--lr", "1"], ["--actor.adam.lr or --critic.adam.lr"]),
        (["--algo.advantage.estimater", "ebpo"], ["Did you mean --algo.advantage.estimator?"]),
        (["--entirely_else"], ["no such flag: --entirely_else", "--help"]),
        (["stray"], ["unexpected argument: 'stray'"]),
    ],
    ids=str,
)
def test_a_mistyped_flag_is_answered_with_the_near_ones(parser, capsys, argv, shown):
    message = refused(parser, capsys, *argv)
    for part in ("train: error:", *shown):
        assert part in message


def test_every_mistyped_flag_is_reported(parser, capsys):
    message = refused(parser, capsys, "--lr", "1", "--n_samples_per_prompt", "4")
    assert len(message.splitlines()) == 2


def test_help_keeps_the_lines_of_an_example():
    parser = argparse.ArgumentParser(
        formatter_class=upstream_main.HelpFormatter, epilog="example:\n  run \\\n    --lr 1"
    )
    parser.add_argument("--lr", default=0.5, help="rate")
    shown = parser.format_help()
    assert "example:\n  run \\\n    --lr 1\n" in shown
    assert "rate (default: 0.5)" in shown


def test_a_bad_value_is_not_buried_under_all_flags(capsys):
    pytest.importorskip("openrlhf")
    parser = upstream_main.UpstreamMain("openrlhf.cli.train_sft").parser("sft")
    assert len(refused(parser, capsys, "--adam.lr", "fast").splitlines()) == 2


BLOCK = "if __name__ == '__main__':\n    parser = 1\n    args = parser.parse_args()\n    check(args)\n    train(args)\n"


def test_the_main_block_is_found_and_cut():
    body = upstream_main._main_block(ast.parse(BLOCK), "m")
    assert upstream_main._find(body, "args = parser.parse_args()", "m") == 1
    assert upstream_main._find(body, "train(args)", "m") == 3


def test_a_main_block_of_another_shape_is_a_seam_error():
    with pytest.raises(SeamError, match="`if __name__"):
        upstream_main._main_block(ast.parse("train()"), "m")
    body = upstream_main._main_block(ast.parse(BLOCK), "m")
    with pytest.raises(SeamError, match=r"m: no line `main\(args\)`"):
        upstream_main._find(body, "main(args)", "m")
