"""Check the files that the flags of `train`, `sft`, `eval` and `data difficulty` name, before anything heavy is
imported.

Every problem names the flag, what was found and what to write instead.
"""

from __future__ import annotations

import contextlib
import importlib.util
import symtable
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from openrlhf_ebpo import hub_models
from openrlhf_ebpo.data.data_files import (
    DataSetError,
    absolute,
    is_local,
    looks_remote,
    open_split,
)
from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.rewards.reward_settings import BUILT_IN

DATA_FLAGS = {  # data set -> its split, and its columns
    "data.prompt_dataset": ("data.prompt_split", "data.input_key", "data.label_key", "data.cluster_key"),
    "data.dataset": ("data.dataset_split", "data.input_key", "data.output_key"),
    "eval.dataset": ("eval.split", "data.input_key", "data.label_key", "data.output_key"),
}
MODEL_FLAGS = tuple(f"{model}.model_name_or_path" for model in ("actor", "critic", "reward", "model"))
NEEDED = {
    **dict.fromkeys(("data.prompt_dataset", "data.dataset"), "a JSON lines, Parquet or CSV file, or a Hub data set"),
    **dict.fromkeys((MODEL_FLAGS[0], MODEL_FLAGS[-1]), "a Hugging Face model or a folder with one"),
}
INIT_PRIOR = "algo.advantage.ebpo.init_prior"
PATH_FLAGS = ("ckpt.path", "ckpt.output_dir", "logger.run_dir", "logger.tensorboard_dir", INIT_PRIOR)
BUILT_IN_NEEDS = {BUILT_IN["math"]: ("math_verify", "'openrlhf_ebpo[math]'")}
REWARD, AGENT = "reward.remote_url", "train.agent_func_path"
NO_FLAG = "the command has no such flag"


def absolute_paths(args) -> None:
    """Make local paths absolute and short names of rewards paths, in place: Ray's workers may have another working
    directory. args: upstream's, nested."""
    changes = {flag: lambda path: str(Path(path).expanduser().absolute()) for flag in PATH_FLAGS}
    changes |= dict.fromkeys((*MODEL_FLAGS, *DATA_FLAGS), absolute_names)
    changes |= {REWARD: lambda name: absolute_names(BUILT_IN.get(name, name)), AGENT: absolute}
    for flag, change in changes.items():
        section, _, name = flag.rpartition(".")
        if text := value_of(args, flag):
            setattr(value_of(args, section), name, change(text))


def absolute_names(names: str) -> str:
    """Return names, separated by commas, with absolute paths of what is on this machine."""
    return ",".join(absolute(name.strip()) for name in names.split(","))


def value_of(args, flag: str, default: object = None):
    """Return the value of a flag in nested arguments; `default` if the command has no such flag."""
    for part in flag.split("."):
        args = getattr(args, part, default)
    return args


def split_names(names: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (names or "").split(",")))


@dataclass(frozen=True)
class InputFiles:
    """The files that the flags of a training name, as far as the command has such flags.

    missing: flags without which the command cannot run. data_sets: flag, name, split, and columns by the flag that
    names them. models: by the flag that names them. rewards: None for a command that needs none.
    """

    missing: tuple[str, ...]
    data_sets: tuple[tuple[str, str, str, Mapping[str, str | None]], ...]
    models: Mapping[str, tuple[str, ...]]
    rewards: tuple[str, ...] | None
    agent: str | None
    label_key: str | None
    init_prior: str | None
    use_ms: bool

    @classmethod
    def from_args(cls, args) -> InputFiles:
        """From upstream's nested arguments, of `train` or `sft`, before its validation."""
        data_flags = dict(DATA_FLAGS)
        if value_of(args, "data.max_images_per_prompt", 0):
            data_flags["data.prompt_dataset"] += ("data.image_key",)
        return cls(
            missing=tuple(flag for flag in NEEDED if not value_of(args, flag, NO_FLAG)),
            data_sets=tuple(
                (flag, name, value_of(args, split) or "train", {f"--{key}": value_of(args, key) for key in keys})
                for flag, (split, *keys) in data_flags.items()
                for name in split_names(value_of(args, flag))
            ),
            models={flag: split_names(value_of(args, flag)) for flag in MODEL_FLAGS},
            rewards=None if value_of(args, REWARD, NO_FLAG) is NO_FLAG else split_names(args.reward.remote_url),
            agent=value_of(args, AGENT),
            label_key=value_of(args, "data.label_key"),
            init_prior=value_of(args, INIT_PRIOR),
            use_ms=bool(value_of(args, "use_ms")),
        )

    def check(self) -> None:
        """Check data files and their columns, models, reward, agent and prior.

        Raises:
            UsageError: all problems found, one per line.
        """
        problems = [f"--{flag} is missing: name {NEEDED[flag]}" for flag in self.missing]
        for flag, name, split, columns in self.data_sets:
            problems += [f"--{flag} {name}: {each}" for each in dataset_problems(name, columns, split)]
        for flag, names in self.models.items():
            for name in names:
                problems += hub_models.model_problems(f"--{flag}", name, ask_hub=not self.use_ms)
        if self.rewards is not None:
            problems += self._reward_problems()
        if self.init_prior and not Path(self.init_prior).is_file():
            problems.append(f"--{INIT_PRIOR} {self.init_prior}: no such file; a run's prior.json is expected")
        raise_problems(problems)

    def check_models_fetched(self) -> None:
        """Check all models that a training loads by `hub_models.check_fetched`."""
        for flag, names in self.models.items() if not self.use_ms else ():
            hub_models.check_fetched(f"--{flag}", *names)

    def check_weights(self) -> None:
        """Check the models that are on this machine by `hub_models.check_weights`."""
        for flag, names in self.models.items():
            hub_models.check_weights(f"--{flag}", *names)

    def _reward_problems(self) -> list[str]:
        """Check rewards, .py files that define `reward_func` or addresses of servers, and the file of an agent."""
        flag, (first, *others), problems = f"--{REWARD}", self.rewards or [None], []
        alone = bool(first and first.endswith(".py"))
        for reward in filter(None, (first,) if alone else (first, *others)):
            if reward.endswith(".py"):
                called = "def reward_func(queries, prompts, labels)"
                problems += _python_problems(flag, reward, "reward_func", called)
            elif not reward.startswith(("http://", "https://")):
                problems.append(f"{flag} {reward}: neither {', '.join(BUILT_IN)}, nor a .py file or an http(s) address")
            else:
                with contextlib.suppress(ValueError):  # of the port
                    if urlsplit(reward).hostname and urlsplit(reward).port != 0:
                        continue
                problems.append(f"{flag} {reward}: names no server; write http://HOST:PORT/PATH")
        if self.agent:
            called = "class AgentExecutor(AgentExecutorBase)"
            problems += _python_problems(f"--{AGENT}", self.agent, "AgentExecutor", called)
        if {first, self.agent} & {*BUILT_IN.values()} and not self.label_key:
            problems.append(
                "--data.label_key is missing: the packaged rewards compare responses with the gold answers in a column"
            )
        if first is None and not self.agent and not self.models["reward.model_name_or_path"]:
            problems.append(
                "no reward: give --reward.remote_url (math, a .py file with reward_func, or a server's address), "
                "--reward.model_name_or_path or --train.agent_func_path"
            )
        if alone and others:
            problems.append(f"{flag} {first}: a .py file stands alone; OpenRLHF would not read what follows it")
        return problems


# --- data


NESTED = ". OpenRLHF reads no column inside another: openrlhf-ebpo data prepare writes such values to a column"


def dataset_problems(name: str, columns: dict[str, str | None], split: str = "train") -> list[str]:
    """Check that a data set can be loaded; one on the Hub is not checked. columns: by the flag that names them."""
    if "@" in name and Path(name).exists():
        return ["OpenRLHF reads what follows an @ as a subfolder: move the data set to a path without one"]
    if not is_local(name) and looks_remote(name):
        return []
    try:
        found = open_split(name, split).column_names
    except DataSetError as error:
        return [str(error)]
    return [
        f"has no column {column!r} ({flag}); its columns are {', '.join(found)}"
        + (NESTED if column.partition(".")[0] in found else "")
        for flag, column in columns.items()
        if column and column not in found
    ]


# --- rewards


def check_agent_by_importing(agent: str | None) -> None:
    """Run the imports of an agent's file, which `InputFiles.check` only reads.

    Raises:
        UsageError: they fail, or give no AgentExecutor.
    """
    if not agent:
        return
    spec = importlib.util.spec_from_file_location("checked_by_dry_run", agent)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{agent} fails when imported: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, "AgentExecutor", None)):
        raise UsageError(f"{agent}: AgentExecutor is not callable")


def _python_problems(flag: str, path: str, name: str, called: str) -> list[str]:
    package, to_install = BUILT_IN_NEEDS.get(path, (None, None))
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
