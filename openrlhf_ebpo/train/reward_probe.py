"""Ask a reward for responses whose reward is known: labels as their own answers, labels of other rows, and an empty
response."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from openrlhf_ebpo.rewards.math.extraction import THOUGHT_TAG, opened_thoughts
from openrlhf_ebpo.rewards.math.golds import GoldError, MissingGold, gold_text
from openrlhf_ebpo.rewards.math.reading import clean
from openrlhf_ebpo.rewards.processes.reward_values import RewardError, check_reward
from openrlhf_ebpo.rewards.processes.servers import GIVER, post
from openrlhf_ebpo.rewards.processes.sources import MIN_FAILED, RewardFile
from openrlhf_ebpo.rewards.reward_settings import BUILT_IN, RewardSettings
from openrlhf_ebpo.upstream import remote_code

SERVER_CALLS = 16  # a server may be a large model
SECONDS = 75.0  # for all calls, more than one may take by default; importing a reward file has its own limit
BOXED, LINE, TAGGED, ALONE = r"\boxed{ANSWER}", "Answer: ANSWER", "<answer>ANSWER</answer>", "ANSWER"
DISPLAY = "Answer:\n\\[\nANSWER\n\\]"
FORMS_BY_HINT = {"boxed": [BOXED], "answer:": [LINE, DISPLAY], "答案": ["答案：ANSWER"], "<answer>": [TAGGED]}
ALL_FORMS = [BOXED, LINE, DISPLAY, TAGGED, ALONE]
SERVER_ROWS = 1 + (SERVER_CALLS - 3 - len(ALL_FORMS)) // 2  # one row may be tried in every form, and in cut thoughts

Ask = Callable[[str, str, object], Awaitable]  # query, prompt, label -> what check_reward takes


@dataclass(frozen=True)
class Row:
    """place: its data set, if there are several, and its number there. answer: the label as a response gives it; None
    if it is not an answer."""

    place: str
    prompt: str
    label: object
    answer: str | None


@dataclass
class RewardProbe:
    """Asks a reward, and keeps what it pays; if `run` is cancelled, the results so far.

    passes: a response has passed from this reward on. end: the end token of responses. few_calls: ask at most
    SERVER_CALLS times. giver: of the rewards, for messages.
    own, wrong: index of a row -> True where its label, or another one, passes. without_end: labels that pass only
        without the end token. empty: reward of an empty response, None if none was asked for. pays_thoughts: an answer
        passes in thoughts that the prompt has opened and the response does not end. calls: that came back. failed:
        index and cause of those without a reward.
    """

    rows: Sequence[Row]
    ask: Ask
    passes: float
    end: str = ""
    few_calls: bool = False
    giver: str = "reward_func"
    calls: int = 0
    own: dict[int, bool] = field(default_factory=dict)
    wrong: dict[int, bool] = field(default_factory=dict)
    without_end: int = 0
    empty: float | None = None
    pays_thoughts: bool = False
    failed: list[tuple[int, RewardError]] = field(default_factory=list)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MIN_FAILED))

    async def run(self) -> None:
        self.empty = await self._ask(0, self.end)
        if self.few_calls and self.failed:
            return
        first, *others = [i for i, row in enumerate(self.rows) if row.answer is not None] or [None]
        if first is not None:
            known = await self._examine(first, None)  # the form that passes is the first to be tried for the others
            row = self.rows[first]
            if self.own[first] and opened_thoughts(row.prompt):  # its own label in thoughts that do not end
                cut = known.removeprefix(empty_thoughts(row.prompt)).removesuffix(self.end)
                reward = await self._ask(first, cut.replace("ANSWER", row.answer))
                self.pays_thoughts = reward is not None and reward >= self.passes
            await asyncio.gather(*(self._examine(i, known) for i in others))

    @property
    def is_dead(self) -> bool:
        """Return True if there have been calls, and none got a reward."""
        return len(self.failed) == self.calls > 0

    async def _examine(self, i: int, known: str | None) -> str:
        """Ask for its own and another row's label. Returns the form of response that passes, or the first."""
        row, passed = self.rows[i], None
        responses = [form + self.end for form in forms(row.prompt)]
        if self.end and not self.few_calls:
            responses += forms(row.prompt)
        responses.sort(key=lambda response: response != known)
        for response in responses[:1] if self.few_calls and known else responses:
            reward = await self._ask(i, response.replace("ANSWER", row.answer))
            if reward is None or reward >= self.passes:
                passed = response if reward is not None else None
                break
        self.own[i] = passed is not None
        self.without_end += bool(passed and not passed.endswith(self.end))
        own = clean(row.answer).lower()
        answers = [each.answer for each in (*self.rows[i + 1 :], *self.rows[:i]) if each.answer]
        other = next((answer for answer in answers if clean(answer).lower() != own), None)  # spelled otherwise
        if other is not None:
            reward = await self._ask(i, (passed or responses[0]).replace("ANSWER", other))
            self.wrong[i] = reward is not None and reward >= self.passes
        return passed or responses[0]

    async def _ask(self, i: int, response: str) -> float | None:
        row, reward = self.rows[i], None
        async with self.slots:
            if self.is_dead and len(self.failed) >= MIN_FAILED:
                return None
            try:
                returned = await self.ask(row.prompt + response, row.prompt, row.label)
                reward = float(check_reward(returned, self.giver)["rewards"])
            except GoldError as error:
                self.failed.append((i, RewardError(str(error))))
            except RewardError as error:
                self.failed.append((i, error))
            self.calls += 1
            return reward


def forms(prompt: str) -> list[str]:
    """Return the forms of response that a prompt asks for; all, if it asks for none."""
    text = prompt.lower()
    requested = [form for word, found in FORMS_BY_HINT.items() if word in text for form in found]
    return [empty_thoughts(prompt) + form for form in requested or ALL_FORMS]


def empty_thoughts(prompt: str) -> str:
    """Return the thoughts that a response has before its answer: the end of those that the prompt has opened, empty
    ones if it names their tags, "" otherwise."""
    tags = THOUGHT_TAG.findall(prompt)
    if not tags or ("/" in tags[-1] and prompt.rstrip().endswith(tags[-1])):  # a chat template may have ended them
        return ""
    start = tags[-1].replace("/", "")
    end = f"\n{start[0]}/{start[1:]}\n\n"
    return end if opened_thoughts(prompt) else f"{start}\n{end}"


def answer_of(label: object) -> str | None:
    """Return the label as the answer of a response; None for an empty label, and for an object."""
    try:
        text = gold_text(label)
    except MissingGold:
        return None
    except GoldError:
        return None if str(label).lstrip()[:1] == "{" else str(label)
    return text


@contextlib.asynccontextmanager
async def open_reward(settings: RewardSettings) -> AsyncIterator[Ask]:
    """Yield the function that calls a reward: a packaged one, a file in processes that can be killed, or servers,
    without retries.

    Raises:
        RewardError: the reward file cannot be imported, or its reward_func cannot be called.
    """
    source = settings.sources[0]
    if not source.endswith(".py"):
        addresses = itertools.cycle(settings.sources)
        yield lambda query, prompt, label: post(
            next(addresses), {"query": [query], "prompts": [prompt], "labels": [label]}
        )
    elif source in BUILT_IN.values():
        function = importlib.import_module("openrlhf_ebpo.rewards.math.math").reward_func
        yield lambda query, prompt, label: asyncio.to_thread(function, [query], [prompt], [label])
    else:
        file = RewardFile(settings, remote_code.hook())
        try:
            await file.prepare()
            yield lambda query, prompt, label: file.ask([query], [prompt], [label])
        finally:
            file.close()


async def probe_reward(settings: RewardSettings, rows: Sequence[Row], passes: float, end: str) -> RewardProbe | None:
    """Ask a reward for these rows, for up to SECONDS. None without rows: then its file is only imported.

    Raises:
        RewardError: as `open_reward`.
    """
    async with open_reward(settings) as ask:
        if not rows:
            return None
        server = {} if settings.sources[0].endswith(".py") else {"few_calls": True, "giver": GIVER}
        probe = RewardProbe(rows, ask, passes, end, **server)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(probe.run(), SECONDS)
        return probe
