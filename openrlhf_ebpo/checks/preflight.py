"""Report mistakes that are visible at the start, before anything heavy is imported.

Works on the flat namespace of upstream's parser (`vars(args)["data.prompt_dataset"]`). Every problem names the
flag, what was found and what to write instead.
"""

from __future__ import annotations

import ast
import csv
import importlib.util
import json
import os
from pathlib import Path
from urllib.parse import urlsplit

from openrlhf_ebpo.errors import raise_problems
from openrlhf_ebpo.models import auto_map, on_hub
from openrlhf_ebpo.models.folder import problems as folder_problems
from openrlhf_ebpo.models.hub_client import HubError
from openrlhf_ebpo.models.weights import WeightsError
from openrlhf_ebpo.seams.remote_code import trusted

DATA_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet", ".arrow")
PATH_FLAGS = (
    "ckpt.path",
    "ckpt.output_dir",
    "logger.run_dir",
    "logger.metrics",
    "logger.tensorboard_dir",
    "algo.advantage.ebpo.init_prior",
)
MODEL_FLAGS = tuple(f"{model}.model_name_or_path" for model in ("actor", "critic", "reward", "model"))
# Short names for the reward files of this package.
BUILT_IN = {
    "reward.remote_url": {"math": "math.py", "reasoning_gym": "reasoning_gym.py", "dapo": "dapo.py"},
    "train.agent_func_path": {"math": "math_agent.py"},
}
BUILT_IN_NEEDS = {
    **dict.fromkeys(("math.py", "math_agent.py"), ("math_verify", "'openrlhf_ebpo[math]'")),
    "reasoning_gym.py": ("reasoning_gym", "reasoning-gym"),
}
REWARDS = Path(__file__).parents[1] / "rewards"
FAIL_REWARD = {str(REWARDS / "dapo.py"): -1.0}  # what a failed response earns, where that is not 0
BUILT_IN_FILES = {str(REWARDS / file) for names in BUILT_IN.values() for file in names.values()}


def absolute_paths(args: dict) -> None:
    """Make local paths absolute and short names of rewards paths, in place: Ray's workers may have another working directory than the driver."""
    for flag in PATH_FLAGS:
        if args.get(flag):
            args[flag] = str(Path(args[flag]).expanduser().absolute())
    for flag in MODEL_FLAGS:
        if args.get(flag):
            args[flag] = _absolute_if_local(args[flag])
    for flag, names in BUILT_IN.items():
        if args.get(flag) in names:
            args[flag] = str(REWARDS / names[args[flag]])
    for flag in ("data.prompt_dataset", "data.dataset", "eval.dataset", "reward.remote_url", "train.agent_func_path"):
        if args.get(flag):
            args[flag] = ",".join(_absolute_if_local(part.strip()) for part in args[flag].split(","))


def _absolute_if_local(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def check_files(args: dict) -> None:
    """Data files and their columns, model paths, reward function, prior.

    Raises:
        UsageError: all problems found, one per line.
    """
    raise_problems(
        [
            *_check_datasets(args),
            *_models_of(args, "actor", "critic", "reward"),
            *_check_reward(args),
            *agent_problems("--train.agent_func_path", args.get("train.agent_func_path")),
            *_check_label(args),
            *_check_init_prior(args),
        ]
    )


def check_sft_files(args: dict) -> None:
    """The same for `train_sft`: data files and their columns, and the model.

    Raises:
        UsageError: all problems found, one per line.
    """
    columns = _columns(args, "data.input_key", "data.output_key")
    problems = [*_needed_data(args, "data.dataset", columns), *_named_data(args, "eval.dataset", columns)]
    raise_problems([*problems, *_models_of(args, "model")])


def _check_datasets(args: dict) -> list[str]:
    columns = _columns(args, "data.input_key", "data.label_key")
    of_training = columns | _columns(args, "data.cluster_key")
    return [*_needed_data(args, "data.prompt_dataset", of_training), *_named_data(args, "eval.dataset", columns)]


def _columns(args: dict, *flags: str) -> dict[str, str | None]:
    return {f"--{flag}": args.get(flag) for flag in flags}


def _needed_data(args: dict, flag: str, columns: dict[str, str | None]) -> list[str]:
    if not args.get(flag):
        return [f"--{flag} is missing: name a JSON lines, Parquet or CSV file, or a Hub data set"]
    return _named_data(args, flag, columns)


def _named_data(args: dict, flag: str, columns: dict[str, str | None]) -> list[str]:
    names = filter(None, (args.get(flag) or "").split(","))
    return [f"--{flag} {name}: {problem}" for name in names for problem in dataset_problems(name, columns)]


def dataset_problems(name: str, columns: dict[str, str | None]) -> list[str]:
    """What can be seen of a data set without loading it; nothing of one on the Hub."""
    path = Path(name.partition("@")[0])
    if not path.exists():
        looks_local = path.suffix in DATA_SUFFIXES or path.is_absolute() or name.startswith((".", "~"))
        return ["no such file"] if looks_local or name.count("/") > 1 else []
    if path.is_dir() or path.suffix not in DATA_SUFFIXES:
        return []
    try:
        found = data_columns(path)
    except Exception as error:  # whatever the reader says, it is about this file
        return [f"cannot be read as {path.suffix[1:]} ({type(error).__name__}: {error})"]
    if not found:
        return ["the file is empty"]
    return [
        f"has no column {column!r} ({flag}); its columns are {', '.join(found)}"
        for flag, column in columns.items()
        if column and column not in found
    ]


def data_columns(path: Path) -> list[str]:
    """Column names of a data file, from its beginning."""
    if path.suffix in (".parquet", ".arrow"):
        import pyarrow.dataset

        return pyarrow.dataset.dataset(path, format=path.suffix[1:]).schema.names
    with open(path, newline="") as file:
        if path.suffix == ".csv":
            return next(csv.reader(file), [])
        first = next((line for line in file if line.strip()), "")
        if path.suffix == ".json" and first.lstrip().startswith("["):
            file.seek(0)
            rows = json.load(file)
            return names_of(rows[0]) if rows else []
        if path.suffix == ".json" and first.strip() == "{":
            return names_of(json.loads(first + file.read()))
    return names_of(json.loads(first)) if first else []


def names_of(row) -> list[str]:
    if not isinstance(row, dict):
        raise ValueError(f"the first row is {row!r:.60}, and must be an object with a value for each column")
    return list(row)


def _models_of(args: dict, needed: str, *others: str) -> list[str]:
    flags = [f"{model}.model_name_or_path" for model in (needed, *others)]
    missing = f"--{flags[0]} is missing: name a Hugging Face model or a folder with one"
    named = [(f"--{flag}", name) for flag in flags for name in filter(None, (args.get(flag) or "").split(","))]
    problems = [problem for each in named for problem in model_problems(*each, ask_hub=not args.get("use_ms"))]
    return problems if args.get(flags[0]) else [missing, *problems]


def model_problems(flag: str, name: str, ask_hub: bool = True) -> list[str]:
    """What is wrong with a model: of a folder, that it is not whole and inert; of a name on the Hub, what its configuration
    tells, which is fetched where this machine does not have it. Where the Hub cannot be reached, nothing is known and
    nothing wrong; `check_fetched` looks at the rest before it is loaded.
    """
    if name.startswith("openai:"):  # not shown: an address may hold a password
        return [
            f"{flag} openai:…: a model behind a server can be evaluated (openrlhf-ebpo eval), and nothing else. Give its weights: a "
            "folder, or a name on the Hub"
        ]
    path = Path(name)
    if path.is_dir() and not (path / "config.json").is_file():
        return [f"{flag} {name}: the folder has no config.json, so no model"]
    if not path.exists() and (path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1):
        return [f"{flag} {name}: no such folder"]
    if path.is_dir():
        return [f"{flag} {name}: {problem}" for problem in folder_problems(path)]
    return _code_problems(flag, name, ask_hub)


def _code_problems(flag: str, name: str, ask_hub: bool) -> list[str]:
    """That a model on the Hub brings code of its own which it needs, unless that is to run."""
    if trusted():
        return []
    try:
        code = auto_map.needed_code(on_hub.reader(name, ask_hub))
        return [f"{flag} {name}: {auto_map.refusal(each)}" for each in code[:1]]
    except (auto_map.ModelFileError, on_hub.NoModel) as error:
        return [f"{flag} {name}: {error}"]
    except HubError:
        return []


def check_fetched(flag: str, names: str | None) -> None:
    """Before anything is loaded: the models of a flag that are names on the Hub are brought into this machine's cache, as
    loading them would, and are whole and inert. Folders have been looked at already.

    Raises:
        UsageError: one is not; one problem a line.
    """
    on_the_hub = [name for name in filter(None, (names or "").split(",")) if not Path(name).exists()]
    raise_problems([f"{flag} {name}: {problem}" for name in on_the_hub for problem in _snapshot_problems(name)])


def check_models_fetched(args: dict) -> None:
    """The same for all models that a training loads. args: by flag.

    Raises:
        UsageError: one is not whole, or not inert.
    """
    for flag in MODEL_FLAGS if not args.get("use_ms") else ():
        check_fetched(f"--{flag}", args.get(flag))


def _snapshot_problems(name: str) -> list[str]:
    try:
        folder = on_hub.snapshot(name)
    except (on_hub.NoModel, WeightsError) as error:
        return [str(error)]
    return folder_problems(folder) if folder else []


def _check_reward(args: dict) -> list[str]:
    url = args.get("reward.remote_url")
    if not url:
        if args.get("reward.model_name_or_path") or args.get("train.agent_func_path"):
            return []
        return [
            "no reward: give --reward.remote_url (math, a .py file with reward_func, or a server's address), "
            "--reward.model_name_or_path or --train.agent_func_path"
        ]
    first, *others = url.split(",")
    problems = reward_problems("--reward.remote_url", first)
    if first.endswith(".py") and others:
        return [
            *problems,
            f"--reward.remote_url {first}: a .py file stands alone; OpenRLHF would not read what follows it",
        ]
    return problems + [problem for each in others for problem in reward_problems("--reward.remote_url", each)]


def reward_problems(flag: str, first: str) -> list[str]:
    """What is wrong with a reward: a .py file, which must define `reward_func`, or a server's address."""
    if not first.endswith(".py"):
        if first.startswith(("http://", "https://")):
            return [] if has_host(first) else [f"{flag} {first}: names no server; write http://HOST:PORT/PATH"]
        return [
            f"{flag} {first}: neither {', '.join(BUILT_IN['reward.remote_url'])}, nor a .py file or an http(s) address"
        ]
    return _check_python_file(flag, first, "reward_func", "def reward_func(queries, prompts, labels)")


def has_host(address: str) -> bool:
    try:
        return bool(urlsplit(address).hostname) and urlsplit(address).port != 0
    except ValueError:  # a port that is none
        return False


def agent_problems(flag: str, path: str | None) -> list[str]:
    """What is wrong with an agent: a .py file, which must define `AgentExecutor`."""
    return [] if not path else _check_python_file(flag, path, "AgentExecutor", "class AgentExecutor(AgentExecutorBase)")


def _check_label(args: dict) -> list[str]:
    rewards = {args.get("reward.remote_url"), args.get("train.agent_func_path")}
    if rewards & BUILT_IN_FILES and not args.get("data.label_key"):
        return ["--data.label_key is missing: the packaged rewards compare responses with the gold answers in a column"]
    return []


def _check_python_file(flag: str, path: str, name: str, wanted: str) -> list[str]:
    package, to_install = BUILT_IN_NEEDS.get(Path(path).name, (None, None)) if path in BUILT_IN_FILES else (None, None)
    if package and importlib.util.find_spec(package) is None:
        return [f"{flag}: {package} is not installed, which this reward needs: pip install {to_install}"]
    try:
        tree = ast.parse(Path(path).read_text(), path)
    except FileNotFoundError:
        return [f"{flag} {path}: no such file"]
    except SyntaxError as error:
        return [f"{flag} {path}: line {error.lineno} is not Python: {error.msg}"]
    except (OSError, UnicodeDecodeError) as error:
        return [f"{flag} {path}: cannot be read ({error})"]
    if name in _bound_names(tree):
        return []
    return [f"{flag} {path}: defines no `{name}`; upstream calls `{wanted}`"]


def _bound_names(tree: ast.Module) -> set[str]:
    """Names that the module itself binds, also under `if` and `try`; not those inside functions and classes."""
    names = set()
    nodes = list(tree.body)
    while nodes:
        node = nodes.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            nodes += ast.iter_child_nodes(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _check_init_prior(args: dict) -> list[str]:
    path = args.get("algo.advantage.ebpo.init_prior")
    if path and not os.path.isfile(path):
        return [f"--algo.advantage.ebpo.init_prior {path}: no such file; a run's prior.json is expected"]
    return []
