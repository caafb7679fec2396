"""Show pass rates of prompts: columns, histogram, summary, progress bar."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

TOLERANCE = 1e-6
LEVELS = 16  # pass rates are shown in sixteenths at most
BAR_WIDTH = 40
OUTCOME_COLUMNS = {
    "pass_rate": pa.float64(),
    "pass_count": pa.int32(),
    "n_rollouts": pa.int32(),
    "mean_reward": pa.float64(),
    "mean_length": pa.float64(),
    "truncated_share": pa.float64(),
}


def outcome(record: dict, pass_reward: float) -> dict:
    """Return the columns of one prompt; without any reward, pass_rate and mean_reward are None."""
    rewards = [reward for reward in record["rewards"] if reward is not None]
    passed = sum(reward >= pass_reward - TOLERANCE for reward in rewards)
    return {
        "pass_rate": passed / len(rewards) if rewards else None,
        "pass_count": passed,
        "n_rollouts": len(rewards),
        "mean_reward": statistics.fmean(rewards) if rewards else None,
        "mean_length": statistics.fmean(record["lengths"]),
        "truncated_share": statistics.fmean(record["truncated"]),
    }


def histogram(rates: Iterable[float], n: int) -> list[int]:
    """Count prompts at each of K + 1 levels, K = min(n, 16): none passed, the K - 1 in between, all passed.

    The ends hold exactly the rates 0 and 1; a rate in between goes to the nearest level that is not an end.
    """
    top = min(n, LEVELS)
    counts = [0] * (top + 1)
    for rate in rates:
        counts[round(rate) * top if rate in (0, 1) or top == 1 else min(max(round(rate * top), 1), top - 1)] += 1
    return counts


def summary(records: dict, outcomes: dict, n: int, pass_reward: float) -> str:
    """Draw the histogram of pass rates; below it the means, and warnings."""
    rates = [row["pass_rate"] for row in outcomes.values() if row["pass_rate"] is not None]
    counts = histogram(rates, n)
    marks = {0: "  all fail", len(counts) - 1: "  all pass"}
    bars = []
    for level, count in enumerate(counts):
        length = BAR_WIDTH * count / max(counts)
        bar = "█" * round(length) or ("▏" if count else "")
        share = f"{count:>7} {count / len(rates):>6.1%}"
        bars.append(f"{level / (len(counts) - 1):>5.2f} {share}  {bar}{marks.get(level, '')}".rstrip())
    lines = [
        ("prompts", f"{len(rates)}"),
        ("mean pass rate", f"{statistics.fmean(rates):.3f}"),
        ("all fail", f"{rates.count(0) / len(rates):.1%}"),
        ("all pass", f"{rates.count(1) / len(rates):.1%}"),
        ("mean length", f"{statistics.fmean(row['mean_length'] for row in outcomes.values()):.0f} tokens"),
        ("truncated", f"{statistics.fmean(row['truncated_share'] for row in outcomes.values()):.1%} of responses"),
    ]
    table = "\n".join(f"{name:<16}{value}" for name, value in lines)
    return "\n\n".join(["", "\n".join(bars), table, *notices(records, outcomes, pass_reward)]).strip("\n")


def notices(records: dict, outcomes: dict, pass_reward: float) -> list[str]:
    """Return warnings that the figures do not give."""
    found = []
    failed = sum(sum(record["errors"].values()) for record in records.values())
    empty = [key for key, row in outcomes.items() if row["pass_rate"] is None]
    if failed:
        responses = sum(len(record["rewards"]) for record in records.values())
        found.append(
            f"warning: {failed} of {responses} responses got no reward and count nowhere; most often: "
            f"{most_common_error(records.values())}"
        )
    if empty:
        names = ", ".join(map(str, empty[:5])) + (", …" if len(empty) > 5 else "")
        found.append(
            f"warning: {len(empty)} prompts have no reward at all and an empty pass_rate ({names}); repeat the "
            "command to try them again"
        )
    rewards = [reward for record in records.values() for reward in record["rewards"] if reward is not None]
    if max(rewards) < pass_reward - TOLERANCE:
        found.append(
            f"warning: no reward reached --pass_reward {pass_reward:g}; the largest was {max(rewards):g}. Another "
            "value takes effect at once: repeat the command with it."
        )
    return found


def most_common_error(records: Iterable[dict]) -> str:
    errors = Counter()
    for record in records:
        errors.update(record["errors"])
    (text, count), *_ = errors.most_common(1)
    return f"{count} x {text}"


class ProgressBar:
    """A bar of finished prompts with prompts/s and time left, tokens/s and failed rewards."""

    def __init__(self, total: int, finished: int):
        from tqdm import tqdm

        self.bar = tqdm(total=total, initial=finished, unit="prompt", dynamic_ncols=True, smoothing=0.05)
        self.started, self.tokens, self.failed = time.monotonic(), 0, 0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_) -> None:
        self.bar.close()

    def update(self, record: dict) -> None:
        self.tokens += sum(record["lengths"])
        self.failed += sum(record.get("errors", {}).values())
        speed = self.tokens / max(time.monotonic() - self.started, 1e-9)
        failed = {"failed rewards": self.failed} if self.failed else {}
        self.bar.set_postfix({"tokens/s": f"{speed:,.0f}", **failed}, refresh=False)
        self.bar.update()
