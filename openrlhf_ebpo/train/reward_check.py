"""Check the labels and the reward of a training before anything starts.

The reward is asked for responses whose reward is known (reward_probe.py): a wrong column, prompts or labels that it
does not read, a reward that fails, and one that pays everything all show in one line.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.data.data_files import is_local
from openrlhf_ebpo.data.labels import label_notices
from openrlhf_ebpo.data.preflight import split_names
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub_models import local_folder
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.rewards.processes.reward_values import RewardError
from openrlhf_ebpo.rewards.processes.servers import Refused
from openrlhf_ebpo.rewards.processes.sources import MIN_FAILED, NoReplyError
from openrlhf_ebpo.rewards.reward_settings import BUILT_IN, RewardSettings
from openrlhf_ebpo.train.prompt_sets import make_prompts, open_prompts
from openrlhf_ebpo.train.reward_probe import SECONDS, SERVER_ROWS, RewardProbe, Row, answer_of, probe_reward
from openrlhf_ebpo.upstream.rendering import announce_special_tokens, text_tokenizer, tokenizer_of

REWARD_FLAG = "--reward.remote_url"
MATH = BUILT_IN["math"]
MAX_ROWS = 256
MAX_CAUSE_CHARS = 300
READ_ROWS = 10_000  # at a time


def training_notices(rewards: RewardSettings, args) -> list[str]:
    """Read the labels of a training with `math`, and ask its reward about rows of its data set. args: upstream's,
    nested.

    Raises:
        UsageError: the reward cannot be used, or not with these labels. ReportedError: its processes do not start.
    """
    if not rewards.sources or rewards.agent:  # an agent needs the model
        return []
    source, column = rewards.sources[0], args.data.label_key
    is_math, is_server = source == MATH, not source.endswith(".py")
    notices, sets, rows = [], [], []
    try:
        names = filter(is_local, split_names(args.data.prompt_dataset))
        sets = [(name, open_prompts(args, name, args.data.prompt_split)) for name in names]
        rows = choose_rows(sets, args, SERVER_ROWS if is_server else MAX_ROWS)
    except UsageError:
        raise
    except Exception as error:  # of other people's files: any exception
        cause = one_line(f"{type(error).__name__}: {error}", MAX_CAUSE_CHARS)
        notices = [f"warning: the reward was not tried with the labels: {cause}"]
    for name, data in sets if is_math else ():
        tables = data.select_columns([column]).with_format("arrow").iter(READ_ROWS)
        labels = (label for table in tables for label in table.column(0).to_pylist())
        notices += label_notices(f"--data.prompt_dataset {name}", column, labels)
    end = ""  # the token that responses end with, if the tokenizer is here
    if folder := local_folder(args.actor.model_name_or_path):
        announce_special_tokens(str(folder))
        end = text_tokenizer(tokenizer_of(str(folder))).eos_token or ""
    named = f"{REWARD_FLAG} {'math' if is_math else redacted_text(source)}"
    try:
        probe = asyncio.run(probe_reward(rewards, rows, args.algo.advantage.ebpo.pass_reward, end))
    except RewardError as error:
        raise UsageError(f"{REWARD_FLAG} {error}") from None
    return notices + (report(probe, named, column, is_math) if probe else [])


# --- what the reward pays


def report(probe: RewardProbe, named: str, column: str | None, is_math: bool) -> list[str]:
    """Describe what the reward pays, and what is wrong with that. named: the reward, with its flag. column: of the
    labels.

    Raises:
        UsageError: no call got a reward, and none will; or `math` pays none of its labels.
    """
    if not probe.calls:
        return [f"warning: {named} gave no reward in {SECONDS:g} s"]
    if probe.is_dead:
        failure = f"{named} gave no reward in any of {probe.calls} calls; the first, {first_failure(probe)}"
        silent = all(isinstance(error, NoReplyError) and not isinstance(error, Refused) for _, error in probe.failed)
        # a server may come up later; or a few calls of a function hung, or ended their process
        if silent and (probe.few_calls or len(probe.failed) < MIN_FAILED):
            return [f"warning: {failure}. If that stays so, the first step stops"]
        raise UsageError(failure)
    paid = []
    if probe.own:
        failing = [i for i, passed in sorted(probe.own.items()) if not passed]
        first = f" (first that does not: {probe.rows[failing[0]].place})" if failing else ""
        earned = len(probe.own) - len(failing)
        paid.append(f"{earned} of {len(probe.own)} labels earn {probe.passes:g} as their own answer{first}")
    if probe.wrong:
        paid.append(f"{sum(probe.wrong.values())} of {len(probe.wrong)} wrong ones do")
    if probe.empty is not None:
        paid.append(f"an empty response earns {probe.empty:g}")
    lines, wrong = [f"reward: {', '.join(paid)}"], [*findings(probe, named, column)]
    if is_math and probe.own and not any(probe.own.values()):
        raise UsageError("\n".join([*lines, *wrong]))
    return [*lines, *(f"warning: {each}" for each in wrong)]


def findings(probe: RewardProbe, named: str, column: str | None) -> Iterator[str]:
    if probe.failed:
        yield f"{named} gave no reward in {len(probe.failed)} of {probe.calls} calls; the first, {first_failure(probe)}"
    if 2 * sum(probe.own.values()) < len(probe.own):
        yield (
            f"{named} pays few or none of its own labels. Does column {column!r} (--data.label_key) hold the "
            f"final answers, and "
            'does the reward read the form that the prompts ask for? Tried were a box, "Answer:", a display '
            "formula, answer "
            "tags and the answer alone, or those of them that the prompt names. (Labels that are not answers, such as "
            "tests, cannot be tried)"
        )
    if probe.without_end:
        yield (
            f"{named} pays {probe.without_end} of these labels only without the end token {probe.end!r}, which "
            "responses have in training: take it off in reward_func"
        )
    if 2 * sum(probe.wrong.values()) > len(probe.wrong):
        yield f"{named} pays wrong answers: a policy learns nothing from it"
    if probe.pays_thoughts:
        yield (
            f"{named} pays an answer in thoughts that do not end: these prompts open them, so a response without their "
            "end holds no answer"
        )
    if probe.empty is not None and probe.empty >= probe.passes:
        yield f"{named} pays an empty response"


def first_failure(probe: RewardProbe) -> str:
    i, error = min(probe.failed, key=lambda each: each[0])
    return f"{probe.rows[i].place}: {one_line(str(error), MAX_CAUSE_CHARS)}"


# --- the rows of a training


def choose_rows(sets: Sequence[tuple], args, most: int) -> list[Row]:
    """Choose rows that are spread over the data sets. Their prompts are as training renders them; as they are, if the
    tokenizer is not on this machine."""
    sizes, folder = [len(data) for _, data in sets], local_folder(args.actor.model_name_or_path)
    total, rows = sum(sizes), []
    chosen = sorted({i * total // most for i in range(most)}) if total else []
    for (name, data), start, size in zip(sets, itertools.accumulate([0, *sizes]), sizes, strict=False):
        numbers = [i - start for i in chosen if start <= i < start + size]
        found = list(data.select(numbers))
        texts = [str(row[args.data.input_key]) for row in found]
        if folder:
            texts = [prompt.text for prompt in make_prompts(args, found, str(folder))]
        suffix = f" of {name}" if len(sets) > 1 else ""
        for i, text, row in zip(numbers, texts, found, strict=True):
            label = row[args.data.label_key] if args.data.label_key else ""
            rows.append(Row(f"row {i + 1:,}{suffix}", text, label, answer_of(label)))
    return rows
