"""The model card: what the model is, how it was made and measured, how to use it, and the metadata that the Hub reads.

Everything comes from the run directory. Text of the run is shown as code, secrets and local paths are left out.
"""

from __future__ import annotations

import logging
import os
import shlex
import tempfile
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import card_metadata, evaluations, usage
from openrlhf_ebpo.hub.card_metadata import dig
from openrlhf_ebpo.hub.local_files import local_file
from openrlhf_ebpo.hub.markdown import code, fenced, join, table
from openrlhf_ebpo.hub.outbox import step_tag
from openrlhf_ebpo.hub.public import last_part, public_run
from openrlhf_ebpo.record import catalogue
from openrlhf_ebpo.record.run_log import RunDirectoryError, read_metrics, read_run
from openrlhf_ebpo.redact import is_secret, redacted_text

logger = logging.getLogger(__name__)

RECORDS = ("run.json", "metrics.jsonl", "checkpoints.jsonl", "prior.json")
PICTURE = "images/training.png"
CURVES = tuple(catalogue.shown_in(catalogue.Shown.CARD))
ESTIMATORS = {
    "ebpo": "EBPO",
    "group_norm": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "rloo": "RLOO",
    "reinforce": "REINFORCE++",
    "reinforce_baseline": "REINFORCE++-baseline",
    "gae": "PPO (GAE)",
}
SETTINGS = (  # label, name of the flag
    ("responses a prompt (G)", "rollout.n_samples_per_prompt"),
    ("prompts a step", "rollout.batch_size"),
    ("responses an optimizer step", "train.batch_size"),
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
PROMPT = "The prompt below is the form in which the model was asked in training."
NO_INSTRUCTION = (
    "The training data was not at hand when this card was made: if its prompts had an instruction around the question, "
    "write it around the question below, too."
)
# of the run's command, what training on from the Hub replaces, and where the run itself came from and went
NOT_AGAIN = (
    "actor.model_name_or_path",
    "pretrain",
    "ckpt.load_enable",
    "load_checkpoint",
    "algo.advantage.ebpo.init_prior",
    "algo.advantage.ebpo.reset_prior",
    "force",
)


def model_card(run_dir: Path, step: int | None, repo: str) -> dict[str, bytes]:
    """README.md and its pictures, by path in the repo.

    Args:
        step: the step that the model is from, which is also its tag; None for the last step, on the branch main.
        repo: OWNER/NAME of the model.

    Raises:
        UsageError: there is no run, or an evaluation in it is damaged.
    """
    run_dir = Path(run_dir)
    run = read(run_dir)
    metrics = [row for row in read_metrics(run_dir) if step is None or row["step"] <= step]
    at = step if step is not None else max([row["step"] for row in metrics], default=0)
    rows = evaluations.rows_of(evaluations.of_run(run_dir))
    own = [row for row in rows if row["step"] == at]
    base = card_metadata.base_model(run, run_dir)
    picture = reward_curve(run_dir, at)
    shown = usage.of_run(run_dir, run.get("args", {}), repo, "main" if step is None else step_tag(step), base)
    blocks = [
        f"# {repo.rpartition('/')[2]}",
        *_about(run, at, base),
        *_usage(shown),
        *_evaluation(own, [row for row in rows if row["step"] == 0 and at]),
        *_training(public_run(run), metrics, at, bool(picture)),
        *_prior(run, metrics, at),
        *_resume(public_run(run), shown),
        *_licence(run, base),
    ]
    text = f"---\n{card_metadata.metadata(run, base, repo, own, run_dir).to_yaml()}\n---\n\n{join(blocks)}"
    return {"README.md": redacted_text(text).encode()} | ({PICTURE: picture} if picture else {})


def read(run_dir: Path) -> dict:
    """run.json. Raises UsageError where there is none, or a damaged one, or where a record is a link out of the run."""
    for name in RECORDS:
        if os.path.lexists(run_dir / name):
            local_file(run_dir / name, run_dir)
    try:
        run = read_run(run_dir)
    except RunDirectoryError as error:
        raise UsageError(str(error)) from error
    if run is None:
        raise UsageError(f"{run_dir} holds no run.json; name the run directory of a training (--logger.run_dir)")
    return run


def reward_curve(run_dir: Path, last_step: int) -> bytes | None:
    """A PNG of reward, shrinkage and entropy up to a step; None without metrics or matplotlib."""
    from openrlhf_ebpo.record.plot import plot_run

    rows = [row for row in read_metrics(run_dir) if row["step"] <= last_step and row.get(catalogue.REWARD) is not None]
    panels = [metric for metric in CURVES if any(row.get(metric.name) is not None for row in rows)]
    if not panels:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "training.png"
        try:
            plot_run(run_dir, path, panels=panels, last_step=last_step)
        except ModuleNotFoundError as error:
            logger.warning(
                "the card has no picture: %s is not installed (pip install 'openrlhf_ebpo[plot]')", error.name
            )
            return None
        return path.read_bytes()


def _about(run: dict, step: int, base: str | None) -> list[str]:
    estimator = str(dig(run, "algo.advantage.estimator"))
    versions = run.get("versions", {})
    name = ESTIMATORS.get(estimator) or code(estimator)
    paper = " ([arXiv 2602.05165](https://arxiv.org/abs/2602.05165))" if estimator == "ebpo" else ""
    return [
        f"{_base(run, base)}, trained for {step} steps of reinforcement learning with the advantage estimator "
        f"{name}{paper}, by [OpenRLHF](https://github.com/OpenRLHF/OpenRLHF) {code(versions.get('openrlhf', 'unknown'))} "
        f"and openrlhf_ebpo {code(versions.get('openrlhf_ebpo', 'unknown'))}."
    ]


def _base(run: dict, base: str | None) -> str:
    """A link where the base model is on the Hub, otherwise its name."""
    name = code(base or last_part(str(run.get("model") or "unknown")))
    return f"[{name}](https://huggingface.co/{base})" if base else name


def _usage(shown: usage.Usage) -> list[str]:
    also = " peft" if shown.adapter_rank else ""
    return [
        "## Use",
        PROMPT if shown.known else NO_INSTRUCTION,
        f"`pip install torch transformers accelerate{also}`:",
        fenced("python", usage.transformers_snippet(shown)),
        "`pip install vllm`:",
        fenced("python", usage.vllm_snippet(shown)),
    ]


def _evaluation(rows: list[dict], base: list[dict]) -> list[str]:
    if not rows:
        return []
    return [
        "## Evaluation",
        "In percent. pass@1: mean over all responses, ± its standard error across runs (how far sampling again would "
        "land); pass@k: chance that one of k responses is right; maj@k: correctness of the majority vote of k responses. "
        "In brackets the 95 % bootstrap interval over questions. Results of different protocols are not comparable.",
        *evaluations.tables(rows, base),
    ]


def _training(run: dict, metrics: list[dict], step: int, picture: bool) -> list[str]:
    facts = [
        ("base model", run.get("model")),
        ("training data", run.get("dataset")),
        ("run", run.get("name")),
        ("step", step),
        *((label, dig(run, flag)) for label, flag in SETTINGS),
        ("started", run.get("started")),
        *(("version of " + name, version) for name, version in run.get("versions", {}).items()),
    ]
    settings = _flat(dig(run, "algo.advantage") or {}, "algo.advantage")
    return [
        "## Training",
        f"![Reward and other metrics over training steps]({PICTURE})" if picture else "",
        _rewards(metrics),
        table(["setting", "value"], [[label, code(value)] for label, value in facts if value not in (None, "", [])]),
        "### Estimator",
        table(["flag", "value"], [[code(f"--{flag}"), code(value)] for flag, value in settings]),
    ]


def _rewards(metrics: list[dict]) -> str:
    values = [row[catalogue.REWARD] for row in metrics if row.get(catalogue.REWARD) is not None]
    if len(values) < 2:
        return ""
    count = min(10, len(values) // 2)
    first, last = sum(values[:count]) / count, sum(values[-count:]) / count
    return f"Mean reward of the batch: {first:.3f} over the first {count} steps, {last:.3f} over the last {count}."


def _prior(run: dict, metrics: list[dict], step: int) -> list[str]:
    if dig(run, "algo.advantage.estimator") != "ebpo":
        return []
    row = next((row for row in metrics if row["step"] == step), {})
    own = next(group.metrics for group in catalogue.GROUPS if group.title == catalogue.ESTIMATOR)
    numbers = [(each.title, f"{row[each.name]:.6g}", each.tells) for each in own if row.get(each.name) is not None]
    return [
        "## prior.json",
        "EBPO shrinks each prompt's mean reward towards what the policy has achieved so far. `prior.json` is that "
        "memory, as running moments of rewards and of group means: whoever trains on from this model starts with it, "
        "not from nothing. It fits only runs with the same number of responses a prompt and the same scale of rewards. "
        "It is not needed to use the model.",
        table(["at this step", "value", "meaning"], numbers) if numbers else "",
    ]


def _resume(run: dict, shown: usage.Usage) -> list[str]:
    place = f"{shown.repo}@{shown.revision}"
    argv = ["openrlhf-ebpo", "train", "--hub.resume_from", place, *_without(run["argv"], NOT_AGAIN)]
    state = (
        "The optimizer's state is there too, in `full_state/`, as pickles, which can run any code of whoever pushed "
        "them: with `--hub.trust_pickle` training goes on exactly where it stopped."
    )
    penalty = (
        " With its KL penalty these weights are the reference policy, too." if dig(run, "algo.kl.init_coef") else ""
    )
    own = "and their prior" if dig(run, "algo.advantage.estimator") == "ebpo" else ""
    return [
        "## Train on",
        f"This command starts a new run from these weights {own}".rstrip() + f".{penalty} It is the run's own, without "
        "secrets, with local paths cut to their last part:",
        fenced("bash", shlex.join(argv)),
        state if dig(run, "hub.full_state") else "",
    ]


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


def _licence(run: dict, base: str | None) -> list[str]:
    name = card_metadata.licence(run.get("model"), base).get("license")
    known = f" ({code(name)})" if name and name != "other" else ""
    return ["## Licence", f"The weights are under the licence of the base model, {_base(run, base)}{known}."]


def _flat(value: dict, name: str) -> list[tuple[str, object]]:
    found = []
    for key, each in value.items():
        found += _flat(each, f"{name}.{key}") if isinstance(each, dict) else [(f"{name}.{key}", each)]
    return found
