"""Check the files that the flags of `train`, `sft`, `eval` and `data difficulty` name, before anything heavy is
imported.

Works on the flat namespace of upstream's parser (`vars(args)["data.prompt_dataset"]`). Every problem names the flag,
what was found and what to write instead.
"""

from __future__ import annotations

import importlib.util
import symtable
from pathlib import Path
from urllib.parse import urlsplit

from openrlhf_ebpo import retired
from openrlhf_ebpo.checks.data_files import (
    DATA_SUFFIXES,
    DataSetError,
    absolute,
    data_columns,
    is_local,
    parts,
    split_files,
)
from openrlhf_ebpo.errors import raise_problems
from openrlhf_ebpo.models import hub_models

DATA_FLAGS = {  # data set -> its columns
    "data.prompt_dataset": ("data.input_key", "data.label_key", "data.cluster_key"),
    "data.dataset": ("data.input_key", "data.output_key"),
    "eval.dataset": ("data.input_key", "data.label_key", "data.output_key"),
}
SPLIT_FLAGS = {
    "data.prompt_dataset": "data.prompt_split",
    "data.dataset": "data.dataset_split",
    "eval.dataset": "eval.split",
}
MODEL_FLAGS = tuple(f"{model}.model_name_or_path" for model in ("actor", "critic", "reward", "model"))
NEEDED = {
    **dict.fromkeys(("data.prompt_dataset", "data.dataset"), "a JSON lines, Parquet or CSV file, or a Hub data set"),
    **dict.fromkeys((MODEL_FLAGS[0], MODEL_FLAGS[-1]), "a Hugging Face model or a folder with one"),
}
INIT_PRIOR = "algo.advantage.ebpo.init_prior"
PATH_FLAGS = ("ckpt.path", "ckpt.output_dir", "logger.run_dir", "logger.metrics", "logger.tensorboard_dir", INIT_PRIOR)
# Short names for the reward files of this package.
BUILT_IN = {
    "reward.remote_url": {"math": "math.py"},
}
BUILT_IN_NEEDS = {
    "math.py": ("math_verify", "'openrlhf_ebpo[math]'"),
}
REWARDS = Path(__file__).parents[1] / "rewards"
BUILT_IN_FILES = {str(REWARDS / file) for names in BUILT_IN.values() for file in names.values()}


def absolute_paths(args: dict) -> None:
    """Make local paths absolute and short names of rewards paths, in place: Ray's workers may have another working
    directory."""
    for flag in (flag for flag in PATH_FLAGS if args.get(flag)):
        args[flag] = str(Path(args[flag]).expanduser().absolute())
    for flag, names in BUILT_IN.items():
        if args.get(flag) in names:
            args[flag] = str(REWARDS / names[args[flag]])
    for flag in (flag for flag in (*MODEL_FLAGS, *DATA_FLAGS, *BUILT_IN) if args.get(flag)):
        args[flag] = ",".join(absolute(part.strip()) for part in args[flag].split(","))


def names_of(args: dict, flag: str) -> list[str]:
    """Return the names that a flag lists, separated by commas."""
    return [name for name in (args.get(flag) or "").split(",") if name]


def check_files(args: dict) -> None:
    """Check data files and their columns, models, reward, agent and prior, as far as the command has such flags.

    Raises:
        UsageError: all problems found, one per line.
    """
    problems = [f"--{flag} is missing: name {what}" for flag, what in NEEDED.items() if not args.get(flag, True)]
    for flag, keys in DATA_FLAGS.items():
        columns = {f"--{key}": args.get(key) for key in keys}
        split = args.get(SPLIT_FLAGS[flag]) or "train"
        for name in names_of(args, flag):
            problems += [f"--{flag} {name}: {problem}" for problem in dataset_problems(name, columns, split)]
    for flag in MODEL_FLAGS:
        for name in names_of(args, flag):
            problems += hub_models.model_problems(f"--{flag}", name, ask_hub=not args.get("use_ms"))
    if "reward.remote_url" in args:
        problems += _reward_problems(args)
    if args.get(INIT_PRIOR) and not Path(args[INIT_PRIOR]).is_file():
        problems.append(f"--{INIT_PRIOR} {args[INIT_PRIOR]}: no such file; a run's prior.json is expected")
    raise_problems(problems)


def check_models_fetched(args: dict) -> None:
    """Check all models that a training loads by `hub_models.check_fetched`. args: by flag."""
    for flag in MODEL_FLAGS if not args.get("use_ms") else ():
        hub_models.check_fetched(f"--{flag}", *names_of(args, flag))


# --- data


def dataset_problems(name: str, columns: dict[str, str | None], split: str = "train") -> list[str]:
    """Check a data set without loading it; one on the Hub is not checked. columns: by the flag that names them."""
    if "@" in name and Path(name).exists():
        return ["OpenRLHF reads what follows an @ as a subfolder: move the data set to a path without one"]
    path = Path(parts(name)[0])
    if path.suffix == ".py" or (path / f"{path.name}.py").is_file():
        return ["is a Python script, which `datasets` no longer runs: save its rows as Parquet or JSON lines"]
    if not is_local(name):
        looks_local = path.suffix in DATA_SUFFIXES or path.is_absolute() or name.startswith((".", "~"))
        return ["no such file"] if looks_local or name.count("/") > 1 else []
    if path.is_file() and path.suffix not in DATA_SUFFIXES:
        return []
    try:
        first = Path(split_files(name, split)[0])
        if first.suffix not in (*DATA_SUFFIXES, ".txt"):
            return []
        found = data_columns(first)
    except DataSetError as error:
        return [str(error)]
    except Exception as error:  # whatever the reader says, it is about this file
        kind = path.suffix[1:] if path.is_file() else "a data set"
        return [f"cannot be read as {kind} ({type(error).__name__}: {error})"]
    if not found:
        return ["the file is empty"]
    return [
        f"has no column {column!r} ({flag}); its columns are {', '.join(found)}"
        for flag, column in columns.items()
        if column and column not in found
    ]


# --- rewards


def _reward_problems(args: dict) -> list[str]:
    flag, agent = "--reward.remote_url", args.get("train.agent_func_path")
    first, *others = names_of(args, "reward.remote_url") or [None]
    problems = agent_problems("--train.agent_func_path", agent)
    if {first, agent} & BUILT_IN_FILES and not args.get("data.label_key"):
        problems.append(
            "--data.label_key is missing: the packaged rewards compare responses with the gold answers in a column"
        )
    if first is None and not agent and not args.get("reward.model_name_or_path"):
        problems.append(
            "no reward: give --reward.remote_url (math, a .py file with reward_func, or a server's address), "
            "--reward.model_name_or_path or --train.agent_func_path"
        )
    if first and first.endswith(".py") and others:
        problems.append(f"{flag} {first}: a .py file stands alone; OpenRLHF would not read what follows it")
        others = []
    return [problem for each in (first, *others) if each for problem in reward_problems(flag, each)] + problems


def reward_problems(flag: str, reward: str) -> list[str]:
    """Check a reward: a .py file that defines `reward_func`, or a server's address."""
    if reward.endswith(".py"):
        return _python_problems(flag, reward, "reward_func", "def reward_func(queries, prompts, labels)")
    if not reward.startswith(("http://", "https://")):
        if line := retired.advice(reward):
            return [f"{flag} {line}"]
        names = ", ".join(BUILT_IN["reward.remote_url"])
        return [f"{flag} {reward}: neither {names}, nor a .py file or an http(s) address"]
    try:
        named = urlsplit(reward).hostname and urlsplit(reward).port != 0
    except ValueError:  # of the port
        named = False
    return [] if named else [f"{flag} {reward}: names no server; write http://HOST:PORT/PATH"]


def agent_problems(flag: str, path: str | None) -> list[str]:
    """Check an agent: a .py file that defines `AgentExecutor`."""
    if path == "math":
        return [f"{flag}: {retired.advice('math_agent.py')}"]
    return _python_problems(flag, path, "AgentExecutor", "class AgentExecutor(AgentExecutorBase)") if path else []


def _python_problems(flag: str, path: str, name: str, called: str) -> list[str]:
    package, to_install = BUILT_IN_NEEDS.get(Path(path).name, (None, None)) if path in BUILT_IN_FILES else (None, None)
    if package and importlib.util.find_spec(package) is None:
        return [f"{flag}: {package} is not installed, which this reward needs: pip install {to_install}"]
    try:
        table = symtable.symtable(Path(path).read_text(), path, "exec")
    except FileNotFoundError:
        return [f"{flag} {path}: no such file"]
    except SyntaxError as error:
        return [f"{flag} {path}: line {error.lineno} is not Python: {error.msg}"]
    except (OSError, ValueError) as error:
        return [f"{flag} {path}: cannot be read ({error})"]
    bound = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return [] if name in bound else [f"{flag} {path}: defines no `{name}`; upstream calls `{called}`"]
