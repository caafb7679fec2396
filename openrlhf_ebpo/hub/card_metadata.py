"""The metadata of a model card, in the fields that the Hub knows."""

from __future__ import annotations

import functools
import logging
import re
from pathlib import Path

from openrlhf_ebpo.hub import evaluations
from openrlhf_ebpo.hub.public import hub_id, last_part, slug
from openrlhf_ebpo.hub_client import HubError, hub_errors
from openrlhf_ebpo.run.run_log import dig

logger = logging.getLogger(__name__)

ASK_SECONDS = 5
MAX_FRONT_MATTER_CHARS = 200_000
FRONT_MATTER = re.compile(r"\s*---\s*\n(.*?)\n---\s*\n", re.S)
LICENCE_LINE = re.compile(r"^(license(?:_name|_link)?):[ \t]*([^\s#{}\[\]&*!|>][^\n#]{0,200}?)[ \t]*$", re.M)
LICENCE_FIELDS = ("license", "license_name", "license_link")


def base_model(run: dict, run_dir: Path) -> str | None:
    """The repo on the Hub that training started from, None where it was a folder."""
    resumed = str(setting(run, "hub.resume_from") or "").partition("@")[0]
    return hub_id(resumed or run.get("model"), run_dir)


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
