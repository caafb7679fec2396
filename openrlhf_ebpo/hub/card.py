"""The model card: what the model is, how it was made and measured, how to use it, and the metadata that the Hub reads.

Everything comes from the run directory. Text of the run is shown as code, secrets and local paths are left out.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import shlex
import tempfile
from pathlib import Path

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.hub import evaluations
from openrlhf_ebpo.hub.content import local_file
from openrlhf_ebpo.hub.exports import step_tag
from openrlhf_ebpo.hub.markdown import Markdown, code, fenced, identifier, render
from openrlhf_ebpo.hub.public import hub_id, last_part, public_run, slug
from openrlhf_ebpo.hub_client import HubError, hub_errors
from openrlhf_ebpo.redact import is_secret, redacted_text
from openrlhf_ebpo.run import catalogue
from openrlhf_ebpo.run.changed_settings import flatten
from openrlhf_ebpo.run.run_log import dig, read_known_run, read_metrics

logger = logging.getLogger(__name__)

RECORDS = ("run.json", "metrics.jsonl", "checkpoints.jsonl", "prior.json")
PICTURE = "images/training.png"
CURVES = tuple(catalogue.metrics_for(catalogue.Shown.CARD))
SETTINGS = (  # label, name of the flag
    ("chat template's arguments", "data.template_kwargs"),
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
    ("reward function", "reward.remote_url"),
    ("reward model", "reward.model_name_or_path"),
    ("seed", "train.seed"),
)
USE = """\
from transformers import pipeline

generate = pipeline("text-generation", {repo}, revision={tag}, device_map="auto")
print(generate("What is 12 * 13?", max_new_tokens=1024, return_full_text=False)[0]["generated_text"])"""
# of the run's command, what training on from the Hub replaces, and where the run itself came from and went
DROPPED_FLAGS = (
    "actor.model_name_or_path",
    "ckpt.load_enable",
    "ckpt.load_step",
    "algo.advantage.ebpo.init_prior",
    "algo.advantage.ebpo.reset_prior",
    "force",
)

ASK_SECONDS = 5
MAX_FRONT_MATTER_CHARS = 200_000
FRONT_MATTER = re.compile(r"\s*---\s*\n(.*?)\n---\s*\n", re.S)
LICENCE_LINE = re.compile(r"^(license(?:_name|_link)?):[ \t]*([^\s#{}\[\]&*!|>][^\n#]{0,200}?)[ \t]*$", re.M)
LICENCE_FIELDS = ("license", "license_name", "license_link")


def model_card(run_dir: Path, step: int, repo: str) -> dict[str, bytes]:
    """README.md and its pictures, by path in the repo.

    Args:
        step: the step that the model is from, which is also its tag.
        repo: OWNER/NAME of the model.

    Raises:
        UsageError: the folder holds no run, or an evaluation in it is damaged.
    """
    run_dir = Path(run_dir)
    run = read(run_dir)
    rows = evaluations.rows_of(evaluations.of_run(run_dir))
    own = [row for row in rows if row["step"] == step]
    base = base_model(run, run_dir)
    picture = reward_curve(run_dir, step)
    text = render(
        "model_card.md",
        metadata=Markdown(metadata(run, base, repo, own, run_dir).to_yaml()),
        name=identifier(repo.rpartition("/")[2]),
        step=step,
        base=_base(run, base),
        licence=licence(run.get("model"), base).get("license"),
        adapter=bool(setting(run, "ds.lora.rank")),
        protocols=evaluations.tables(own, [row for row in rows if row["step"] == 0 and step]),
        picture=Markdown(PICTURE) if picture else None,
        **_estimator(run),
        **_training(public_run(run), step),
        **_commands(public_run(run), repo, step),
    )
    return {"README.md": redacted_text(text).encode()} | ({PICTURE: picture} if picture else {})


def read(run_dir: Path) -> dict:
    """run.json of a run directory.

    Raises:
        RunDirectoryError: it is missing or damaged. UsageError: a record is a link out of the run.
    """
    for name in RECORDS:
        if os.path.lexists(run_dir / name):
            local_file(run_dir / name, run_dir)
    return read_known_run(run_dir)


def reward_curve(run_dir: Path, last_step: int) -> bytes | None:
    """A PNG of reward, shrinkage and entropy up to a step; None without metrics or matplotlib."""
    from openrlhf_ebpo.run.plot import plot_runs

    if all(row["step"] > last_step or row.get(catalogue.REWARD) is None for row in read_metrics(run_dir)):
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "training.png"
        try:
            plot_runs({"": run_dir}, path, panels=CURVES, last_step=last_step)
        except ModuleNotFoundError as error:
            logger.warning(
                "the card has no picture: %s is not installed (pip install 'openrlhf_ebpo[plot]')", error.name
            )
            return None
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


def _training(run: dict, step: int) -> dict:
    facts = [
        ("base model", run.get("model")),
        ("training data", run.get("dataset")),
        ("run", run.get("name")),
        ("step", step),
        *((label, setting(run, flag)) for label, flag in SETTINGS),
        ("started", run.get("started")),
    ]
    settings = flatten(setting(run, "algo.advantage") or {}, "algo.advantage.").items()
    return {
        "settings": [(Markdown(label), code(value)) for label, value in facts if value not in (None, "", [])],
        "versions": [(identifier(part), code(version)) for part, version in run.get("versions", {}).items()],
        "estimator_settings": [(code(f"--{flag}"), code(value)) for flag, value in settings],
    }


def _commands(run: dict, repo: str, step: int) -> dict:
    """Explain how to use the model, and how to continue training from it."""
    use = USE.format(repo=json.dumps(repo), tag=json.dumps(step_tag(step)))
    argv = ["openrlhf-ebpo", "train", "--actor.model_name_or_path", "model"]
    argv += ["--algo.advantage.ebpo.init_prior", "model/prior.json"]
    return {
        "use": fenced("python", use),
        "command": fenced("bash", shlex.join([*argv, *_without(run["argv"], DROPPED_FLAGS)])),
        "kl_penalty": bool(setting(run, "algo.kl.init_coef")),
    }


def _without(argv: list[str], flags: tuple[str, ...]) -> list[str]:
    """A command line without these flags, those of the Hub and secret ones, and without their values."""
    kept, dropping = [], False
    for item in argv:
        if item.startswith("--"):
            name = item[2:].partition("=")[0]
            dropping = name in flags or name.startswith("hub.") or is_secret(name)
        if not dropping:
            kept.append(item)
    return kept


# Metadata


def base_model(run: dict, run_dir: Path) -> str | None:
    """The repo on the Hub that training started from, None where it was a folder."""
    return hub_id(run.get("model"), run_dir)


def metadata(run: dict, base: str | None, repo: str, rows: list[dict], run_dir: Path):
    """huggingface_hub.ModelCardData, from which the Hub makes tags, links and the table of results."""
    from huggingface_hub import ModelCardData

    estimator = setting(run, "algo.advantage.estimator") or "unknown"
    adapter = bool(setting(run, "ds.lora.rank"))
    results = evaluations.eval_results(rows)
    datasets = [name for part in str(run.get("dataset") or "").split(",") if (name := hub_id(part.strip(), run_dir))]
    return ModelCardData(
        base_model=base,
        base_model_relation=("adapter" if adapter else "finetune") if base else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", "openrlhf", slug(estimator)],
        datasets=datasets or None,
        model_name=repo.rpartition("/")[2] if results else None,
        eval_results=results or None,
        **licence(run.get("model"), base),
    )


@functools.cache
def licence(model: str | None, base: str | None) -> dict[str, str]:
    """The card's licence fields: those of the base model's own card, in its folder or on the Hub; a reference to the
    base model where its card cannot be read; none for a folder without a card. The Hub is asked once per process."""
    try:
        card = (_card_in(Path(model)) if model else {}) or (_card_of(base) if base else {})
    except (HubError, OSError) as error:
        logger.info("the licence of %s is not known: %s", base or last_part(model or ""), error)
        card = {}
    if card.get("license"):
        return {name: card[name] for name in LICENCE_FIELDS if card.get(name)}
    page = f"https://huggingface.co/{base}"
    return {"license": "other", "license_name": "that-of-the-base-model", "license_link": page} if base else {}


def _card_in(folder: Path) -> dict:
    """The licence's fields in the README.md of a folder, by their lines: reading all of its YAML may take a minute."""
    path = folder / "README.md"
    if not path.is_file():
        return {}
    with open(path, encoding="utf-8", errors="replace") as file:
        front = FRONT_MATTER.match(file.read(MAX_FRONT_MATTER_CHARS))
    lines = LICENCE_LINE.findall(front[1]) if front else []
    return {name: value.strip("\"'") for name, value in lines}


def _card_of(base: str) -> dict:
    """Asked in the one way that the client does not repeat: a card is not worth waiting for."""
    from huggingface_hub import HfApi

    with hub_errors(f"asking for the licence of {base}"):
        found = HfApi().model_info(base, timeout=ASK_SECONDS).card_data
    return found.to_dict() if found else {}


def setting(run: dict, flag: str):
    """The value of a flag in run.json, None if it has none."""
    return dig(run, "args", *flag.split("."))
