"""The data card of a published run, or of results."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.hub import evaluations
from openrlhf_ebpo.hub.content import Content, size
from openrlhf_ebpo.hub.markdown import Markdown, code, fill_template
from openrlhf_ebpo.hub.public import hub_id, public_run, run_tag, slug
from openrlhf_ebpo.hub.publish import megabytes
from openrlhf_ebpo.redact import without_secrets
from openrlhf_ebpo.run.run_log import get_nested, read_metrics, read_run

FACTS = ("name", "status", "model", "dataset", "seed", "hardware", "started", "ended")
# name for load_dataset -> files. Of Parquet alone: it reads a repo with one reader
TABLES = {"rollouts": "rollouts/*.parquet", "eval": "**/samples.parquet"}


def data_card(run_dir: Path, repo: str, files: Mapping[str, Content]) -> str:
    """README.md of the repo. files: the others, by path in it."""
    run = public_run(read_run(run_dir) or {})
    estimator = str(get_nested(run, "args", "algo", "advantage", "estimator") or "")
    repo_of_models, results = get_nested(run, "args", "hub", "repo"), evaluations.of_run(run_dir)
    last = max((each.step for each in results), default=0)
    tables = [name for name, pattern in TABLES.items() if any(fnmatch(path, pattern) for path in files)]
    text = fill_template(
        "run_card.md",
        metadata=metadata(repo, [slug(each) for each in (estimator, *run_tag(run)) if each], tables),
        name=Markdown(repo.rpartition("/")[2]),
        repo=Markdown(repo),
        ebpo=estimator == "ebpo",
        headline=evaluations.change(*evaluations.of_step(results, last), read_metrics(run_dir)),
        facts=[(Markdown(key), run[key]) for key in FACTS if run.get(key) is not None],
        estimator=code(registry.title(estimator)) if estimator else None,
        count=Markdown(len(files)),
        size=Markdown(megabytes(sum(map(size, files.values())))),
        table=Markdown(tables[0]) if tables else None,
        model=Markdown(repo_of_models) if hub_id(repo_of_models) else None,
        tag=next((Markdown(tag) for tag in run_tag(run)), None),
    )
    return without_secrets(text)


def metadata(repo: str, tags: list[str], tables: list[str]) -> Markdown:
    """The card's YAML, with the tables that the viewer shows and load_dataset(repo, name) reads. Without any the viewer
    would show run.json and the like as data."""
    from huggingface_hub import DatasetCardData

    configs = [{"config_name": name, "data_files": TABLES[name]} for name in tables]
    data = DatasetCardData(
        license="other",
        pretty_name=repo.rpartition("/")[2],
        task_categories=["text-generation"],
        tags=["reinforcement-learning", "openrlhf", "rollouts", *tags],
        **({"configs": configs} if configs else {"viewer": False}),
    )
    return Markdown(data.to_yaml())
