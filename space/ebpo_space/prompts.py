"""The prompts of a run: how often each was asked and solved, over all steps, as a table that sorts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from openrlhf_ebpo.run.score_text import whole_percent

from . import reading
from .cards import pager
from .components import page_of, setting, sort_head
from .groups import Groups
from .runs import Run
from .search import prompts_of
from .text import HTML, harmless, html, join
from .turns import last_user_turn

PER_PAGE = 40
QUESTION_COLUMNS = ("pass rate", "times asked", "last passed", "length")
SORTS = (*QUESTION_COLUMNS, *(f"-{name}" for name in QUESTION_COLUMNS))


@dataclass(frozen=True)
class Prompts:
    """P prompts, one entry each.

    Attributes:
        latest: place of its latest group in the index.
        asked: its groups.
        rate: share of its valid responses that passed, NaN without any.
        last_passed: the last step with a response that passed, -1 if none ever did.
        length: mean tokens of its responses.
    """

    latest: np.ndarray
    asked: np.ndarray
    rate: np.ndarray
    last_passed: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.latest)

    def order(self, sort: str) -> np.ndarray:
        """Return places in this order, of equal ones those that were asked most first; NaN last."""
        named = dict(zip(QUESTION_COLUMNS, (self.rate, self.asked, self.last_passed, self.length), strict=True))
        values = named[sort.removeprefix("-")].astype(float)
        return np.lexsort((-self.asked, -values if sort.startswith("-") else values))


def by_prompt(groups: Groups) -> Prompts:
    """Summarise the prompts of all groups that name theirs."""
    coded = pa.array(groups.prompt_id, pa.string()).dictionary_encode()
    known = np.flatnonzero(coded.indices.is_valid().to_numpy(zero_copy_only=False))
    codes = coded.indices.drop_null().to_numpy()
    total = lambda values: np.bincount(codes, values[known], len(coded.dictionary))  # noqa: E731
    passed = np.nan_to_num(groups.success) * groups.valid
    last_passed, latest = np.full(len(coded.dictionary), -1), np.zeros(len(coded.dictionary), int)
    solved = known[passed[known] > 0]
    np.maximum.at(last_passed, codes[passed[known] > 0], groups.step[solved])
    latest[codes] = known  # in order of step
    with np.errstate(all="ignore"):
        rate, length = total(passed) / total(groups.valid), total(groups.length) / total(groups.size)
    return Prompts(latest, np.bincount(codes, minlength=len(latest)), rate, last_passed, length)


def prompt_table(run: Run, groups: Groups, prompts: Prompts, chosen: np.ndarray, sort: str, page: int) -> HTML:
    """Lay out page `page` (from 1) of the chosen prompts, places in order; a click on one opens its latest group."""
    here, page, pages = page_of(chosen, page, PER_PAGE)
    texts = prompts_of(run, groups, prompts.latest[here])
    rows = join(_row(prompts, groups, int(i), texts) for i in here)
    name, reverse = sort.removeprefix("-"), sort.startswith("-")
    heads = join(sort_head(each, name, reverse, "prompts_by") for each in QUESTION_COLUMNS)
    fit = f" {len(chosen):,} fit." if len(chosen) < len(prompts) else ""
    return html(
        '<section class="prompts" aria-label="Prompts"><header><p><b>{:,}</b> of {:,} prompts were never solved.{}</p>'
        '{}</header><div class="scroll" tabindex="0"><table><caption>Prompts</caption><thead><tr><th scope="col">prompt'
        "</th>{}</tr></thead><tbody>{}</tbody></table></div></section>",
        *(int((prompts.last_passed < 0).sum()), len(prompts), fit),
        *(pager("shown", page, pages, "prompts"), heads, rows),
    )


def _row(prompts: Prompts, groups: Groups, i: int, texts: Mapping[int, str]) -> HTML:
    at = int(prompts.latest[i])
    there = {"list": "groups", "at": f"{groups.step[at]}.{groups.group[at]}", "steps": "all", "answer": 0}
    rate, last = prompts.rate[i], prompts.last_passed[i]
    return html(
        '<tr><th scope="row"><button type="button" {}><span class="words">{}</span></button></th><td>{}</td>'
        "<td>{:,}</td><td>{}</td><td>{}</td></tr>",
        *(setting(**there), reading.line(last_user_turn(texts.get(at, "")), 160) or harmless("(cannot be read)")),
        *("–" if math.isnan(rate) else whole_percent(rate), prompts.asked[i]),
        *(f"step {last:,}" if last >= 0 else HTML('<span class="bad">never</span>'), f"{prompts.length[i]:,.0f}"),
    )
