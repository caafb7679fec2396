"""Measure how hard every prompt is for a model: the share of its responses that pass, by the reward of training.

Every prompt gets --rollout.n_samples_per_prompt responses from vLLM, over as many GPUs of a Ray cluster as the flags
of engines say; training's own rollout and reward code generates and scores them. Flags with a dot are those of `train`:
give the ones of the training to come, and the pass rates are those of its first step.

example:
  openrlhf-ebpo data difficulty --input train.parquet --output difficulty.parquet \\
      --actor.model_name_or_path Qwen/Qwen3-8B --reward.remote_url math --data.apply_chat_template \\
      --rollout.max_new_tokens 8192 --vllm.num_engines 8

input:  prompts and labels; rows without a column id are known by their prompts
output: the same rows (`openrlhf-ebpo data order` drops rows by pass rate) with these columns added:
  pass_rate         share of the responses with a reward of --pass_reward or more; empty if no response got a reward
  pass_count        number of these responses
  n_rollouts        number of responses that got a reward; all, unless the reward failed for some
  mean_reward       their mean reward
  mean_length       mean length in tokens, over all responses
  truncated_share   share of all responses that were cut off at --rollout.max_new_tokens
--output X.parquet keeps its progress in X.progress.jsonl.

Killed or interrupted? Repeat the command: finished prompts are kept, whatever the hardware is now. Prompts whose
rewards all failed are tried again. Another model, reward or sampling is refused unless --force starts over.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from openrlhf_ebpo.chat_template import ARGUMENTS, Kwargs, check_used, parse_kwargs, values
from openrlhf_ebpo.command import command, nested
from openrlhf_ebpo.data import difficulty_report as report
from openrlhf_ebpo.data import preflight
from openrlhf_ebpo.data.labels import label_notices
from openrlhf_ebpo.data.preflight import InputFiles
from openrlhf_ebpo.data.training_tables import (
    add_key_flags,
    check_suffix,
    ids_of,
    keys_of,
    read_table,
    with_column,
    write_table,
)
from openrlhf_ebpo.engines import engines
from openrlhf_ebpo.engines.cluster import ClusterError
from openrlhf_ebpo.engines.engines import EngineSettings, Sample, Sampling
from openrlhf_ebpo.errors import ReportedError, UsageError, raise_problems
from openrlhf_ebpo.extension import add_trust_flag, trust_models
from openrlhf_ebpo.progress import (
    file_identity,
    fingerprint,
    model_identity,
    output_problems,
    progress_file,
    progress_path,
)
from openrlhf_ebpo.rewards import reward_settings
from openrlhf_ebpo.rewards.reward_settings import BUILT_IN, RewardSettings
from openrlhf_ebpo.upstream.engine_errors import EngineError
from openrlhf_ebpo.upstream.install import install
from openrlhf_ebpo.upstream.rendering import Prompt, is_text, render_prompts
from openrlhf_ebpo.upstream.tokenizer_fit import TRAINING

MODEL = "actor.model_name_or_path"
SAMPLING_FLAGS = {  # by the name of Sampling's field
    "rollout.n_samples_per_prompt": "n",
    **{f"rollout.{name}": name for name in ("temperature", "top_p", "max_new_tokens")},
}
FORM = ("apply_chat_template", "template_kwargs", "input_template")  # of prompts
GIVE_UP_AFTER = 8  # prompts without a single reward, before the first one that has any


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input", required=True, metavar="FILE", help="prompts, in any form of --data.prompt_dataset")
    parser.add_argument("--output", required=True, metavar="FILE", help="the same rows with pass rates")
    add_key_flags(parser)
    parser.add_argument(f"--{MODEL}", required=True, metavar="MODEL", help="folder or Hugging Face name")
    add = parser.add_argument_group("reward: a function or server, or an agent").add_argument
    add("--reward.remote_url", metavar="REWARD", help=".py file with reward_func, http address(es), or `math`")
    add("--train.agent_func_path", metavar="FILE", help=".py file with AgentExecutor")
    add(
        "--pass_reward",
        type=float,
        default=1.0,
        metavar="REWARD",
        help="smallest reward of a response that passes (default: %(default)s)",
    )
    reward_settings.add_flags(parser)
    add = parser.add_argument_group("prompts and sampling").add_argument
    for name, kind, default, metavar, about in (
        ("n_samples_per_prompt", int, 16, "N", "responses per prompt"),
        ("temperature", float, 1.0, "T", "sampling temperature"),
        ("top_p", float, 1.0, "P", "sample from the likeliest tokens of total probability P"),
        ("max_new_tokens", int, 8192, "TOKENS", "limit of a response"),
    ):
        add(f"--rollout.{name}", type=kind, default=default, metavar=metavar, help=f"{about} (default: %(default)s)")
    add(
        "--data.max_len",
        type=int,
        metavar="TOKENS",
        help="prompt and response together: longer prompts lose their beginning. Default: room for the longest prompt "
        "and --rollout.max_new_tokens",
    )
    add("--data.apply_chat_template", action="store_true", help="put prompts into the tokenizer's chat template")
    add("--data.template_kwargs", **ARGUMENTS)
    add(
        "--data.input_template",
        metavar="TEXT",
        help="put prompts into this text, in place of its {}; not with --data.apply_chat_template",
    )
    add("--limit", type=int, metavar="N", help="measure only the first N rows, for a quick look (default: all)")
    engines.add_flags(parser)
    add_trust_flag(parser)
    parser.add_argument("--force", action="store_true", help="start over; earlier progress is kept under another name")


@dataclass(frozen=True)
class DifficultySettings:
    """Settings of a measurement of difficulty.

    keys: the columns of prompts and labels.
    files: the model, the reward and the agent, as training checks them.
    engine: its max_len is None where the longest prompt decides. A response passes from `pass_reward`.
    apply_chat_template, template_kwargs, input_template: the form of the prompts, as in training.
    """

    input: str
    output: str
    files: InputFiles
    keys: tuple[str, str]
    limit: int | None
    force: bool
    engine: EngineSettings
    sampling: Sampling
    pass_reward: float
    apply_chat_template: bool
    template_kwargs: Kwargs
    input_template: str | None

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> DifficultySettings:
        flags = nested(vars(args))
        preflight.absolute_paths(flags)
        data, rollout = flags.data, flags.rollout
        kwargs = parse_kwargs(data.template_kwargs, "--data.template_kwargs")
        return cls(
            **{name: getattr(args, name) for name in ("input", "output", "limit", "force", "pass_reward")},
            files=InputFiles.from_args(flags),
            keys=keys_of(args),
            engine=EngineSettings.from_args(
                args,
                flags.actor.model_name_or_path,
                max_len=data.max_len,
                rewards=RewardSettings.from_args(flags),
                template_kwargs=kwargs,
            ),
            sampling=Sampling(rollout.n_samples_per_prompt, rollout.temperature, rollout.top_p, rollout.max_new_tokens),
            apply_chat_template=data.apply_chat_template,
            template_kwargs=kwargs,
            input_template=data.input_template,
        )

    @property
    def rewards(self) -> RewardSettings:
        return self.engine.rewards

    def identity(self) -> dict:
        """Return the settings that rewards depend on, without those of the hardware."""
        rewards = self.rewards
        is_file = rewards.sources and rewards.sources[0].endswith(".py")
        return {
            MODEL: model_identity(self.engine.model),
            "reward.remote_url": file_identity(rewards.sources[0]) if is_file else ",".join(rewards.sources) or None,
            "train.agent_func_path": file_identity(rewards.agent) if rewards.agent else None,
            **{flag: getattr(self.sampling, name) for flag, name in SAMPLING_FLAGS.items()},
            "data.max_len": self.engine.max_len,
            **{f"data.{name}": getattr(self, name) for name in FORM},
            "data.template_kwargs": values(self.template_kwargs),
        }

    def check(self) -> None:
        """Check what can be checked within a second.

        Raises:
            UsageError: all problems, one per line.
        """
        self.rewards.check()
        check_used(
            self.template_kwargs, self.apply_chat_template, "--data.template_kwargs", "--data.apply_chat_template"
        )
        install()  # what follows may import transformers, and rows for it come first
        check_suffix(self.output, "--output")
        sampling, max_len, rewards = self.sampling, self.engine.max_len, self.rewards
        fits = sampling.n >= 1, sampling.temperature >= 0, 0 < sampling.top_p <= 1, sampling.max_new_tokens >= 1
        problems = [
            f"--{flag} {getattr(sampling, name)} is out of range"
            for (flag, name), fine in zip(SAMPLING_FLAGS.items(), fits, strict=True)
            if not fine
        ]
        if self.limit is not None and self.limit < 1:
            problems.append(f"--limit {self.limit} is out of range")
        if rewards.sources and rewards.agent:
            problems.append("give --reward.remote_url or --train.agent_func_path, not both")
        if max_len is not None and max_len <= sampling.max_new_tokens:
            problems.append(
                f"--data.max_len {max_len} leaves no room for a prompt: --rollout.max_new_tokens is "
                f"{sampling.max_new_tokens}"
            )
        if max_len is None and rewards.agent:
            problems.append("--train.agent_func_path needs --data.max_len, the tokens of all turns together")
        if self.input_template is not None and (self.apply_chat_template or "{}" not in self.input_template):
            problems.append(
                "--data.input_template needs a {} where the prompt goes, and no --data.apply_chat_template with it"
            )
        problems += self.engine.problems()
        raise_problems([*problems, *output_problems(self.output, self.input, self.force)])
        self.files.check()


def run(args: argparse.Namespace) -> None:
    trust_models(args.trust_remote_code)
    settings = DifficultySettings.from_args(args)
    settings.check()
    settings.files.check_models_fetched()
    input_key, label_key = settings.keys
    table = read_table(settings.input, {input_key: "--data.input_key", label_key: "--data.label_key"})
    table = table.slice(0, settings.limit)
    columns = {
        "id": ids_of(table, input_key),
        "prompt": table[input_key].to_pylist(),
        "label": table[label_key].to_pylist(),
    }
    rows = distinct_rows(
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], settings
    )
    if settings.rewards.sources == (BUILT_IN["math"],):
        for notice in label_notices(f"--input {settings.input}", label_key, columns["label"]):
            print(notice)
    with progress_file(progress_path(settings.output), settings.identity(), settings.force) as (lines, append):
        records = usable_records(lines, rows)
        todo = [row for row in rows.values() if row["id"] not in records or not is_scored(records[row["id"]])]
        print(f"{len(rows)} prompts, {len(rows) - len(todo)} of them measured already", flush=True)
        if todo:
            measure(settings, todo, records, append)
        finish(settings, table, records)


def distinct_rows(rows: list[dict], settings: DifficultySettings) -> dict:
    """Return id -> row; a row that occurs twice is measured once.

    Raises:
        UsageError: no rows, one id for two prompts, or chats without chat template.
    """
    flag = f"--input {settings.input}"
    if not rows:
        raise UsageError(f"{flag} has no rows")
    distinct: dict = {}
    for row in rows:
        if prompt_fingerprint(distinct.setdefault(row["id"], row)) != prompt_fingerprint(row):
            raise UsageError(f"{flag}: id {row['id']!r} stands for two different prompts")
    if not settings.apply_chat_template and not is_text(rows[0]["prompt"], settings.input_template):
        raise UsageError(f"{flag}: the prompts are chats; add --data.apply_chat_template")
    return distinct


def prompt_fingerprint(row: dict) -> str:
    return fingerprint(json.dumps([row["prompt"], row["label"]]).encode())


def usable_records(lines: list[dict], rows: dict) -> dict:
    """Return id -> its last record, for prompts that still read as they did when they were measured."""
    known = {line["id"]: line for line in lines if line["id"] in rows}
    return {key: line for key, line in known.items() if line["prompt"] == prompt_fingerprint(rows[key])}


def is_scored(record: dict) -> bool:
    return any(reward is not None for reward in record["rewards"])


def measure(settings: DifficultySettings, rows: list[dict], records: dict, append: Callable[[dict], None]) -> None:
    """Generate and score what is missing; every finished prompt goes to `append` and `records` at once."""
    engines.prepare_process()
    sampling, chat = settings.sampling, settings.apply_chat_template
    kwargs = values(settings.template_kwargs)
    prompts = render_prompts(rows, settings.engine.model, chat, settings.input_template, kwargs)
    engine, warnings = engines.fit_window(settings.engine, prompts, sampling.max_new_tokens, chat, TRAINING)
    for warning in warnings:
        print(warning)
    fingerprints = {row["id"]: prompt_fingerprint(row) for row in rows}
    total, earlier = len(records.keys() | fingerprints.keys()), len(records.keys() - fingerprints.keys())
    state = f"{progress_path(settings.output)}: repeat the command to resume"
    try:
        with engines.started(engine) as actors, report.ProgressBar(total, earlier) as bar:
            for prompt, samples in engines.generate(actors, prompts, sampling, engine):
                record = to_record(prompt, samples, fingerprints[prompt.key])
                append(record)
                records[prompt.key] = record
                bar.update(record)
                stop_if_nothing_works(records, settings)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{count_scored(records)} of {total} prompts are in {state}") from None
    except (ClusterError, EngineError) as error:
        raise ReportedError(f"{error}\n{count_scored(records)} of {total} prompts are in {state}") from error


def to_record(prompt: Prompt, samples: list[Sample], prompt_hash: str) -> dict:
    """Make one line of the progress file."""
    errors = Counter(sample.error or "no reward" for sample in samples if sample.reward is None)
    return {
        "id": prompt.key,
        "prompt": prompt_hash,
        "rewards": [sample.reward for sample in samples],
        "lengths": [len(sample.tokens) for sample in samples],
        "truncated": [sample.truncated for sample in samples],
        "errors": dict(errors),
    }


def stop_if_nothing_works(records: dict, settings: DifficultySettings) -> None:
    """End a measurement in which the first prompts all got no reward: the rest would get none either.

    Raises:
        UsageError: with the error that the rewards failed with most often.
    """
    if len(records) == GIVE_UP_AFTER and not count_scored(records):
        raise UsageError(nothing_scored(records, settings))


def nothing_scored(records: dict, settings: DifficultySettings) -> str:
    source = settings.rewards.agent or ",".join(settings.rewards.sources)
    return (
        f"{source} gave no reward for any response of the first {len(records)} prompts: "
        f"{report.most_common_error(records.values())}"
    )


def count_scored(records: dict) -> int:
    return sum(map(is_scored, records.values()))


def finish(settings: DifficultySettings, table, records: dict) -> None:
    """Write the table and print the summary."""
    if not count_scored(records):
        raise UsageError(nothing_scored(records, settings))
    outcomes = {key: report.outcome(record, settings.pass_reward) for key, record in records.items()}
    for name, type in report.OUTCOME_COLUMNS.items():
        table = with_column(table, name, [outcomes[key][name] for key in ids_of(table, settings.keys[0])], type)
    write_table(table, settings.output)
    print(report.summary(records, outcomes, settings.sampling.n, settings.pass_reward))
    print(f"\ntable  {settings.output}")
    print(f"next   openrlhf-ebpo data order --by difficulty --input {settings.output} --output ordered.parquet")


main = command("openrlhf-ebpo data difficulty", __doc__, add_flags, run, extra="data")
