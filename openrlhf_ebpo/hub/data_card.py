"""The data card of a published run: its facts, and every table with its columns explained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.hub import evaluations
from openrlhf_ebpo.hub.content import Content
from openrlhf_ebpo.hub.markdown import Markdown, code, identifier, meanings, render, sanitize, table, words
from openrlhf_ebpo.hub.public import slug
from openrlhf_ebpo.hub.response_tables import ROLLOUTS, SAMPLES, read_schema
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.catalogue import Metric, find
from openrlhf_ebpo.run.custom_metrics import custom_metrics
from openrlhf_ebpo.run.results import SAMPLES_FILE

METRICS = "tables/metrics.parquet"
EVALUATIONS = "tables/evaluations.parquet"
RESPONSES = "rollouts/step-"
STEP = meanings({"step": "training step", "time": "seconds since 1970, UTC"})  # the other metrics are in the catalogue
OTHER = Markdown("logged by the reward function, or by OpenRLHF")
FACTS = {"name": "run", "status": "status", "model": "model", "dataset": "training data", "estimator": "estimator"}
FACTS |= {"seed": "seed", "started": "started", "ended": "ended"}


def data_card(run: dict, repo: str, files: Mapping[str, Content]) -> str:
    """README.md of the repo.

    Args:
        run: run.json as it is published.
        files: the other files, by path in the repo.
    """
    estimator = str(run.get("args", {}).get("algo", {}).get("advantage", {}).get("estimator", "unknown"))
    facts = {**run, "estimator": registry.title(estimator)}
    text = render(
        "run_card.md",
        metadata=metadata(repo, ["reinforcement-learning", "openrlhf", "rollouts", slug(estimator)], configs(files)),
        name=identifier(repo.rpartition("/")[2]),
        ebpo=estimator == "ebpo",
        facts=[(Markdown(label), code(facts[key])) for key, label in FACTS.items() if facts.get(key) is not None],
        versions=[(identifier(part), code(version)) for part, version in run.get("versions", {}).items()],
        tables=tables(files, run),
    )
    return redacted_text(text)


def configs(files: Mapping[str, Content]) -> list[dict]:
    """The card's `configs`: one per table, one per protocol and task with a split per step."""
    found = []
    if METRICS in files:
        found.append({**config("metrics", {"train": METRICS}), "default": True})
    if any(path.startswith(RESPONSES) for path in files):
        found.append(config("rollouts", {"train": f"{RESPONSES}*.parquet"}))
    if EVALUATIONS in files:
        found.append(config("evaluations", {"train": EVALUATIONS}))
    return found + sample_configs(path for path in files if path.startswith("eval/"))


def config(name: str, files: Mapping[str, str]) -> dict:
    """One entry of `configs`: by split the path, or pattern, that the viewer and load_dataset(repo, name) read."""
    return {"config_name": name, "data_files": [{"split": split, "path": path} for split, path in files.items()]}


def sample_configs(paths: Iterable[str]) -> list[dict]:
    """A configuration for each protocol and task, from paths that end in PROTOCOL/TASK/step-N/samples.parquet."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for path in sorted(path for path in paths if path.endswith(f"/{SAMPLES_FILE}")):
        protocol, task, step = path.split("/")[-4:-1]
        groups.setdefault((protocol, task), {})[step.replace("-", "_")] = path
    names = unique(f"eval-{slug(protocol)}-{slug(task)}" for protocol, task in groups)
    return [config(name, splits) for name, splits in zip(names, groups.values(), strict=True)]


def unique(names: Iterable[str]) -> list[str]:
    """The names; a later one of two equal ones gets a number."""
    found: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in found:
            candidate, number = f"{name}-{number}", number + 1
        found.append(candidate)
    return found


def metadata(repo: str, tags: Sequence[str], configs: Sequence[dict]) -> Markdown:
    """The card's YAML. Without any table the Hub's viewer would show run.json and the like as data."""
    from huggingface_hub import DatasetCardData

    viewer = {"configs": list(configs)} if configs else {"viewer": False}
    pretty = repo.rpartition("/")[2]
    data = DatasetCardData(pretty_name=pretty, task_categories=["text-generation"], tags=list(tags), **viewer)
    return Markdown(data.to_yaml())


def tables(files: Mapping[str, Content], run: Mapping) -> list[list[Markdown]]:
    """List each kind of table: its name, the meaning of a row, and its columns explained."""
    found = []

    def add(name: str, row: str, paths: Iterable[str], explained: Mapping[str, Markdown]) -> None:
        fields = {field.name: field for path in paths for field in read_schema(files[path])}
        lines = [[name, field.type, explained.get(name, OTHER)] for name, field in fields.items()]
        if lines:
            found.append([*words(name, row), table(words("column", "type", "meaning"), lines)])

    own = custom_metrics(run.get("metrics"))
    metrics = read_schema(files[METRICS]).names if METRICS in files else []
    explained = {name: metric_meaning(name, own) for name in metrics}
    add("metrics", "One row per step.", [METRICS] if metrics else [], explained)
    rollouts = [path for path in files if path.startswith(RESPONSES)][-1:]  # the last is dropped last
    add("rollouts", "One row per response.", rollouts, ROLLOUTS)
    evaluated = [EVALUATIONS] if EVALUATIONS in files else []
    add(
        "evaluations",
        "One row per metric of one task at one step under one protocol.",
        evaluated,
        evaluations.MEANING,
    )
    samples = [path for path in files if path.endswith(f"/{SAMPLES_FILE}")]
    row = "One row per response; one configuration per protocol and task, one split per step."
    add("eval-…", row, samples, SAMPLES)
    return found


def metric_meaning(name: str, own: Mapping[str, Metric] = MappingProxyType({})) -> Markdown:
    """The meaning of a metric's column. own: descriptions of the run's custom metrics, which are untrusted text."""
    if name in STEP:
        return STEP[name]
    if metric := find(name):
        return Markdown(_meaning(metric))
    return sanitize(_meaning(own[name])) if name in own else OTHER


def _meaning(metric: Metric) -> str:
    return metric.with_unit(": ".join(filter(None, (metric.title, metric.description))))
