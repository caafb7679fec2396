"""Commands end the same way in `openrlhf-ebpo …` and in `python -m …`: one line and no traceback."""

import importlib.util
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from openrlhf_ebpo import __version__, cli
from openrlhf_ebpo.cli import data, hub
from openrlhf_ebpo.cli import eval as evaluation
from openrlhf_ebpo.command import command, error_exit
from openrlhf_ebpo.errors import ReportedError, SeamError, UsageError

ROOT = Path(__file__).parents[2]
LEVELS = {(): cli, ("data",): data, ("eval",): evaluation, ("hub",): hub}
COMMANDS = {  # words of openrlhf-ebpo -> the modules that are the same command
    **{("train",): ["openrlhf_ebpo.cli.train_ppo_ray"], ("sft",): ["openrlhf_ebpo.cli.train_sft"]},
    **{("data", name): [] for name in data.COMMANDS},
    **{("eval", name): [each.module, each.module.partition(".")[2]] for name, each in evaluation.COMMANDS.items()},
    **{("hub", name): [] for name in hub.COMMANDS},
    **{(name,): [f"openrlhf_ebpo.cli.{name}"] for name in ("doctor", "replay", "verify")},
    ("space",): [],  # and space/app.py, in test_one_identity.py
}
ONLY_MODULES = ["openrlhf_ebpo.quickstart", "openrlhf_ebpo.upstream"]
CONSOLE = [sys.executable, "-c", "from openrlhf_ebpo.cli import main; main()"]
STARTS = [[*CONSOLE, "train"], *([sys.executable, "-m", name] for name in ONLY_MODULES)]
BY_MODULE = [[sys.executable, "-m", name] for name in itertools.chain.from_iterable(COMMANDS.values())]


def nightly(starts: Iterable[list[str]]) -> list:
    # daily: unit/test_one_identity.py starts by -m, and the same commands are tried by their words
    return [pytest.param(start, marks=pytest.mark.nightly) for start in starts]


MISTAKES = {  # a mistake that is not argparse's, found by each command itself
    ("train",): (["--advantage_estimator", "ebpo"], "--data.prompt_dataset is missing"),
    ("sft",): ([], "--data.dataset"),
    ("data", "prepare"): (["--input", "nowhere.jsonl", "--output", "o"], "nowhere.jsonl"),
    ("data", "topics"): (["--input", "nowhere.jsonl", "--output", "o.parquet"], "nowhere.jsonl"),
    ("data", "difficulty"): (
        [
            "--input",
            "nowhere.jsonl",
            "--output",
            "o.parquet",
            "--actor.model_name_or_path",
            "m",
            "--reward.remote_url",
            "r.py",
        ],
        "r.py: no such file",
    ),
    ("data", "order"): (["--input", "nowhere.jsonl", "--output", "o.parquet", "--by", "difficulty"], "nowhere.jsonl"),
    ("eval", "run"): (["--tasks", "file:nowhere.jsonl"], "give --model"),
    ("eval", "report"): (["nowhere"], "nowhere"),
    ("eval", "score"): (["--input", "nowhere.jsonl", "--output", "o.jsonl"], "nowhere.jsonl"),
    ("replay",): (["nowhere"], "nowhere holds no run.json"),
    ("verify",): (["nowhere"], "nowhere holds no run.json"),
    ("hub", "push"): (["nowhere"], "nowhere"),
    ("hub", "pull"): (["no-name", "folder"], "no-name"),
    ("hub", "push-run"): (["nowhere", "--repo", "name"], "name"),
    ("hub", "deploy-space"): (["no-name", "--runs", "me/run"], "no-name"),
}


@pytest.fixture(autouse=True)
def unsupervised(monkeypatch):
    """`train` forks its driver, which here would be a second pytest; the tests by subprocess start it as it is."""
    monkeypatch.setattr("openrlhf_ebpo.cli.train_ppo_ray.under_supervision", lambda: None)


def end_of(argv: list[str], **how) -> subprocess.CompletedProcess:
    return subprocess.run(argv, cwd=how.pop("cwd", ROOT), capture_output=True, text=True, timeout=120, **how)


def test_every_command_is_tried_here():
    named = {(*words, name) for words, level in LEVELS.items() for name in level.COMMANDS}
    assert named - set(LEVELS) == set(COMMANDS)
    assert set(COMMANDS) - {("doctor",), ("space",)} == set(MISTAKES)  # those two end with argparse's status
    for module in itertools.chain.from_iterable(COMMANDS.values()):
        assert importlib.util.find_spec(module), f"{module}, which the nightly tests start"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_commands_help_is_text_and_status_0(words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and text.startswith("usage: ") and len(text.splitlines()) > 5 and "%(" not in text


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_flag_that_no_command_has_is_a_line_and_status_2(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([*words, "--no_such_flag"])
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and "error: " in err and "--help" in err, err


@pytest.mark.parametrize(
    "start",
    [*STARTS, *nightly(BY_MODULE)],
    ids=lambda argv: " ".join(argv[2:]).removeprefix(CONSOLE[2]).strip(),
)
def test_nothing_that_is_imported_says_more_than_that_line(start):
    done = end_of([*start, "--no_such_flag"])
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_a_line_and_status_1(words, tmp_path, monkeypatch, capsys):
    argv, said = MISTAKES[words]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, *argv])
    lines = str(ended.value.code).splitlines()
    assert lines and all(line.startswith("error: ") for line in lines) and said in "\n".join(lines)
    assert "Traceback" not in capsys.readouterr().err


def test_a_mistake_ends_a_module_as_it_ends_the_console_command(tmp_path):
    flags = ["nowhere"]
    ends = {
        (done.returncode, done.stdout, done.stderr)
        for start in ([*CONSOLE, "eval", "report"], *([sys.executable, "-m", m] for m in COMMANDS["eval", "report"]))
        for done in [end_of([*start, *flags])]
    }
    assert ends == {(1, "", "error: nowhere is not a directory; name a run or a directory with evaluation results\n")}


@pytest.mark.parametrize("words", LEVELS, ids=lambda words: " ".join(words) or "top")
def test_each_level_teaches_and_answers_a_mistyped_command(words, capsys):
    commands = LEVELS[words].COMMANDS
    assert len(commands) > 2
    if words != ("eval",):  # its --help is that of `eval run`
        cli.main([*words, "--help"])
        listed = capsys.readouterr().out
        assert all(name in listed and command.summary in listed for name, command in commands.items())
    name = list(commands)[-1]
    with pytest.raises(SystemExit, match="2"):
        cli.main([*words, name[:1] + name[2:]])
    (line,) = capsys.readouterr().err.splitlines()
    assert f"Did you mean {name}?" in line
    with pytest.raises(SystemExit, match="2"):
        cli.main([*words, "qqqq"])
    said = capsys.readouterr().err
    assert all(name in said for name in commands)


def test_no_command_at_all_shows_the_help(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([])
    assert "openrlhf-ebpo doctor" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UsageError("--a is 1\n--b is 2"), "error: --a is 1\nerror: --b is 2"),
        (ReportedError("it stopped\nrepeat the command"), "error: it stopped\nrepeat the command"),
        (SeamError("a row"), "error: a row"),
        (UsageError("https://me:secret-word@host/x?signature=abc is down"), "error: https://<redacted>@host/x is down"),
        (OSError(28, "No space left on device", "out"), "error: [Errno 28] No space left on device: 'out'"),
        (ModuleNotFoundError(name="plotly"), "error: plotly is not installed: pip install 'openrlhf_ebpo[space]'"),
        (
            ModuleNotFoundError(name="torch.nn"),
            "error: torch is not installed; docs/gpus.md and docs/start.md have the two ways to install the stack",
        ),
    ],
)
def test_expected_errors_have_no_traceback(error, text):
    def run():
        raise error

    with pytest.raises(SystemExit) as ended:
        error_exit("space")(run)()
    assert ended.value.code == text


@pytest.mark.parametrize(
    "error", [KeyError("x"), ValueError("x"), ModuleNotFoundError(name="openrlhf_ebpo.nothing"), ImportError("x")]
)
def test_a_mistake_of_ours_keeps_its_traceback(error):
    def run():
        raise error

    with pytest.raises(type(error)):
        error_exit("data")(run)()


def test_a_package_that_no_extra_brings_keeps_its_traceback():
    with pytest.raises(ModuleNotFoundError), error_exit():
        raise ModuleNotFoundError(name="numpy")


@pytest.mark.parametrize(
    ("words", "said"), [((), "repeat the command to resume"), (("3 of 4 are kept",), "3 of 4 are kept")]
)
def test_ctrl_c_is_status_130_and_a_line(words, said, capsys):
    def run(args):
        raise KeyboardInterrupt(*words)

    with pytest.raises(SystemExit, match="130"):
        command("eval", "", lambda parser: None, run)([])
    assert capsys.readouterr().err == f"interrupted; {said}\n"


WAITS = """
import signal, time
from openrlhf_ebpo.command import error_exit
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
@error_exit()
def main():
    print("waiting", flush=True)
    time.sleep(60)
main()
"""


def test_a_signal_ends_a_process_with_that_status():
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "waiting\n"
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "interrupted; repeat the command to resume\n")


PRINTS = "from openrlhf_ebpo.command import error_exit\n@error_exit()\ndef main():\n{}\nmain()"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("    for _ in range(10**6): print('a line', flush=True)", 141, ""),
        ("    print('a line that stays in the buffer')", 141, ""),
        (
            "    print('x')\n    from openrlhf_ebpo.errors import UsageError\n    raise UsageError('why')",
            1,
            "error: why\n",
        ),
        ("    import os; r, w = os.pipe(); os.close(r); os.write(w, b'x')", 1, "error: [Errno 32] Broken pipe\n"),
    ],
    ids=["flushed", "buffered", "and an error", "another pipe"],
)
def test_a_reader_that_goes_away_is_no_traceback(body, status, said):
    reads, writes = os.pipe()
    if "os.pipe" not in body:
        os.close(reads)
    ends = {"stdout": writes, "stderr": subprocess.PIPE, "env": {**os.environ, "PYTHONUNBUFFERED": ""}}
    done = subprocess.run([sys.executable, "-c", PRINTS.format(body)], text=True, timeout=60, **ends)
    os.close(writes)
    assert (done.returncode, done.stderr) == (status, said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "prepare", "--outptu", "x"], "no such flag: --outptu. Did you mean --output?"),
        (["eval", "score", "--inptu", "x", "--ouptut", "y"], "no such flag: --inptu. Did you mean --input"),
        (["eval", "--modle", "x"], "no such flag: --modle. Did you mean --model"),
        (["space", "--rnus", "x"], "no such flag: --rnus. Did you mean --runs?"),
    ],
    ids=" ".join,
)
def test_a_mistyped_flag_is_answered_before_one_that_is_missing(words, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 2 and said in capsys.readouterr().err


def test_a_missing_flag_is_named(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["data", "prepare"])
    assert stopped.value.code == 2 and "required: --output" in capsys.readouterr().err


def test_the_version(capsys):
    cli.main(["--version"])
    assert capsys.readouterr().out == f"openrlhf_ebpo {__version__}\n"
