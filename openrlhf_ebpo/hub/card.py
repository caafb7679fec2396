"""The model card: what the model is, how it was made and measured, how to use it, and the metadata that the Hub reads.

Everything comes from the run directory. Text of the run is shown as code, secrets and local paths are left out.
"""

from __future__ import annotations

import json
import math
import shlex
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.hub import asking, evaluations
from openrlhf_ebpo.hub.content import digest, header_of, local_file
from openrlhf_ebpo.hub.markdown import Markdown, code, fenced, fill_template
from openrlhf_ebpo.hub.public import hub_id, last_part, public_run, public_text, run_tag, slug, step_tag
from openrlhf_ebpo.redact import is_secret, without_secrets
from openrlhf_ebpo.run import catalogue
from openrlhf_ebpo.run.results import Result
from openrlhf_ebpo.run.run_log import get_nested, read_known_run, read_metrics

PACKAGE = Path(__file__).parents[1]
PICTURE = "images/training.png"
CURVES = tuple(catalogue.metrics_for(catalogue.Shown.CARD))
SETTINGS = (  # label, name of the flag
    ("responses per prompt (G)", "rollout.n_samples_per_prompt"),
    ("prompts per step", "rollout.batch_size"),
    ("responses per optimizer step", "train.batch_size"),
    ("longest response (tokens)", "rollout.max_new_tokens"),
    ("sampling temperature", "rollout.temperature"),
    ("sampling top-p", "rollout.top_p"),
    ("learning rate", "actor.adam.lr"),
    ("policy loss", "actor.policy_loss_type"),
    ("clip range", "actor.eps_clip_low_high"),
    ("KL coefficient", "algo.kl.init_coef"),
    ("LoRA rank (0: full fine-tuning)", "ds.lora.rank"),
    ("episodes", "train.num_episodes"),
    ("reward model", "reward.model_name_or_path"),
    ("seed", "train.seed"),
)
# of the run's command, what training on replaces, and where the run itself came from and went: beginnings of flags
DROPPED_FLAGS = (
    "hub.",
    "actor.model_name_or_path",
    "ckpt.load_enable",
    "ckpt.load_step",
    "algo.advantage.ebpo.init_prior",
    "algo.advantage.ebpo.reset_prior",
    "force",
)


def model_card(run_dir: Path, step: int, repo: str, model: Path | None = None) -> dict[str, bytes]:
    """README.md and its pictures, by path in the repo.

    Args:
        step: the step that the model is from, which is also its tag.
        repo: OWNER/NAME of the model.
        model: its folder, for the number of its parameters.

    Raises:
        UsageError: the folder holds no run, an evaluation in it is damaged, or a record is a link out of it.
    """
    run_dir = Path(run_dir)
    local_file(run_dir / "run.json", run_dir)
    run = read_known_run(run_dir)
    own, before = evaluations.of_step(evaluations.of_run(run_dir), step)
    metrics = [row for row in read_metrics(run_dir) if row["step"] <= step]
    base = hub_id(run.get("model"), run_dir)
    picture = reward_curve(run_dir, step)
    text = fill_template(
        "model_card.md",
        metadata=Markdown(metadata(run, base, repo, own, run_dir).to_yaml()),
        name=Markdown(repo.rpartition("/")[2]),
        step=Markdown(step),
        base=_base(run, base),
        on_hub=bool(base),
        result=evaluations.change(own, before, metrics),
        tag=next((Markdown(tag) for tag in run_tag(run)), None),
        protocols=evaluations.tables(own, before),
        picture=Markdown(PICTURE) if picture else None,
        **_estimator(run),
        **asking.use(run_dir, run, repo, step),
        settings=_settings(run, run_dir, step, model),
        versions=run.get("versions", {}).items(),
        repeat=_repeat(own, repo, step),
        command=_train_on(public_run(run)),
        kl_penalty=bool(setting(run, "algo.kl.init_coef")),
    )
    return {"README.md": without_secrets(text).encode()} | ({PICTURE: picture} if picture else {})


def reward_curve(run_dir: Path, last_step: int) -> bytes | None:
    """A PNG of reward, shrinkage and entropy up to a step; None without metrics."""
    from openrlhf_ebpo.run.plot import plot_runs

    if all(row["step"] > last_step or row.get(catalogue.REWARD) is None for row in read_metrics(run_dir)):
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "training.png"
        plot_runs({"": run_dir}, path, panels=CURVES, last_step=last_step)
        return path.read_bytes()


def _estimator(run: dict) -> dict:
    name, versions = str(setting(run, "algo.advantage.estimator")), run.get("versions", {})
    entry = registry.ESTIMATORS.get(name)
    return {
        "ebpo": name == "ebpo",
        "has_state": registry.computed_here(name),
        "estimator": Markdown(entry.title) if entry else name,
        "arxiv": Markdown(entry.arxiv) if entry and entry.arxiv else None,
        **{part: code(versions.get(part, "unknown")) for part in ("openrlhf", "openrlhf_ebpo")},
    }


def _base(run: dict, base: str | None) -> Markdown:
    """A link where the base model is on the Hub (`base` has the form of its names), otherwise its name."""
    name = code(base or last_part(str(run.get("model") or "unknown")))
    return Markdown(f"[{name}](https://huggingface.co/{base})") if base else name


def _settings(run: dict, run_dir: Path, step: int, model: Path | None) -> list[tuple[Markdown, Markdown]]:
    """Rows of the table of settings."""
    shown, prompts = public_run(run), setting(run, "rollout.batch_size")
    facts = [
        ("base model", shown.get("model")),
        ("parameters", model and f"{parameters(model):,}"),
        ("training data", source(run.get("dataset"), run_dir)),
        ("reward function", source(setting(run, "reward.remote_url"), run_dir)),
        ("run", shown.get("name")),
        ("step", step),
        ("prompts trained on", step * prompts if isinstance(prompts, int) else None),
        *((label, setting(shown, flag)) for label, flag in SETTINGS),
        ("estimator's flags", " ".join(_flags(shown["argv"], lambda name: name.startswith("algo.advantage.")))),
        ("started", shown.get("started")),
        ("hours", duration(run, run_dir, step)),
        ("hardware", shown.get("hardware")),
    ]
    return [(Markdown(label), code(value)) for label, value in facts if value not in (None, "", [])]


def source(value, run_dir: Path) -> Markdown | None:
    """Name data sets or reward functions, and how to get them: a link, a file of this package, or of a local file the
    name and the content's hash, which tells whether two are the same."""
    names = value if isinstance(value, list) else str(value or "").split(",")
    return Markdown(
        ", ".join(_source(name.strip(), run_dir) for name in names if isinstance(name, str) and name.strip())
    )


def _source(name: str, run_dir: Path) -> Markdown:
    path = run_dir / name  # an absolute one as it is
    if path.is_relative_to(PACKAGE):
        return Markdown(f"{code(path.relative_to(PACKAGE.parent))}, part of openrlhf_ebpo")
    if path.is_file():
        known = f"a local file that is not published, sha256 {digest(local_file(path))[:16]}"
        return Markdown(f"{code(last_part(name))}, {known}")
    shown = code(public_text(name))
    is_data = hub_id(name, run_dir) and not name.endswith(".py")
    return Markdown(f"[{shown}](https://huggingface.co/datasets/{name})") if is_data else shown


def parameters(model: Path) -> int:
    """Number of a model's weights, by the headers of its files."""
    headers = (json.loads(header_of(local_file(path, model))) for path in model.glob("*.safetensors"))
    shapes = (row["shape"] for header in headers for name, row in header.items() if name != "__metadata__")
    return sum(map(math.prod, shapes))


def duration(run: dict, run_dir: Path, step: int) -> str | None:
    """Hours from the run's start to the end of a step, pauses between resumes included."""
    ended = [row["time"] for row in read_metrics(run_dir) if row["step"] == step and "time" in row]
    try:
        seconds = ended[-1] - datetime.fromisoformat(run["started"]).timestamp()
    except (LookupError, TypeError, ValueError):
        return None
    return f"{seconds / 3600:.2f}" if seconds > 0 else None


def _repeat(results: list[Result], repo: str, step: int) -> Markdown | None:
    """The commands that repeat the evaluations."""
    runs = sorted({(each.protocol["name"].partition("+")[0], each.task) for each in results})
    pull = f"openrlhf-ebpo hub pull {repo} model --revision {step_tag(step)}"
    command = ["openrlhf-ebpo", "eval", "--model", "model", "--output_dir", "results"]
    lines = [shlex.join([*command, "--protocol", protocol, "--tasks", task]) for protocol, task in runs]
    return fenced("bash", "\n".join([pull, *lines])) if lines else None


def _train_on(run: dict) -> Markdown:
    """The run's own command, without the Hub's flags and secret ones, from these weights and their prior."""
    argv = ["openrlhf-ebpo", "train", "--actor.model_name_or_path", "model"]
    argv += ["--algo.advantage.ebpo.init_prior", "model/prior.json"]
    kept = _flags(run["argv"], lambda name: not (name.startswith(DROPPED_FLAGS) or is_secret(name)))
    return fenced("bash", shlex.join([*argv, *kept]))


def _flags(argv: list[str], wanted: Callable[[str], bool]) -> list[str]:
    """The flags of a command line whose names are wanted, with their values."""
    kept, keeping = [], False
    for item in argv:
        if item.startswith("--"):
            keeping = wanted(item[2:].partition("=")[0])
        kept += [item] * keeping
    return kept


# Metadata


def metadata(run: dict, base: str | None, repo: str, evaluated: list[Result], run_dir: Path):
    """huggingface_hub.ModelCardData, from which the Hub makes tags, links and the table of results."""
    from huggingface_hub import ModelCardData

    estimator = setting(run, "algo.advantage.estimator") or "unknown"
    adapter = bool(setting(run, "ds.lora.rank"))
    results = evaluations.eval_results(evaluated)
    datasets = [name for part in str(run.get("dataset") or "").split(",") if (name := hub_id(part.strip(), run_dir))]
    return ModelCardData(
        base_model=base,
        base_model_relation=("adapter" if adapter else "finetune") if base else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", "openrlhf", slug(estimator), *run_tag(run)],
        datasets=datasets or None,
        model_name=repo.rpartition("/")[2] if results else None,
        eval_results=results or None,
        **({"license": "other", "license_name": "that-of-the-base-model"} if base else {}),
        **({"license_link": f"https://huggingface.co/{base}"} if base else {}),
    )


def setting(run: dict, flag: str):
    """The value of a flag in run.json, None if it has none."""
    return get_nested(run, "args", *flag.split("."))
