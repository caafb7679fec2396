"""The cost of scoring an evaluation: 1,274 questions x 32 responses, graded and sorted into classes for the vote.

The five benchmarks of the paper have 1,274 questions. Responses are realistic: a derivation of 300 to 8,000 characters
(--characters makes them longer), then an answer. Right answers come in two to four spellings, wrong ones are partly
shared and partly different each time, some responses have none, and one in forty is hostile, each in its own way:
towers of powers, endless expansions, nesting, 100 kB of one digit. One in a thousand keeps its process busy until that
is killed, which takes 2 s. Every verdict is checked against what is known.

  python research/eval_score.py --questions 100
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import threading
import time
from collections import Counter

from openrlhf_ebpo.eval.grader import Grader
from openrlhf_ebpo.eval.protocols import PROTOCOLS
from openrlhf_ebpo.eval.tasks import Question

GRADINGS, CORE_MINUTES = 40_768, 5
# gold, right answers, wrong answers
PROBLEMS = (
    ("{n}", ["{n}", "{n}.0", "x={n}", "\\text{{{n}}}"], ["{m}", "-{n}", "\\frac{{{n}}}{{{m}}}"]),
    ("\\frac{{{n}}}{{{m}}}", ["\\dfrac{{{n}}}{{{m}}}", "{n}/{m}"], ["\\frac{{{m}}}{{{n}}}", "{n}"]),
    ("{n}\\sqrt{{{p}}}", ["\\sqrt{{{p}}}\\cdot {n}", "{n} \\sqrt{{{p}}}"], ["{m}\\sqrt{{{p}}}", "\\sqrt{{{n}}}"]),
    ("({n},{m})", ["({n}, {m})", "\\left({n},{m}\\right)"], ["({m},{n})", "{n}"]),
    ("{n},{m}", ["{m}, {n}", "{n} \\text{{ and }} {m}"], ["{n}", "{n},{p}"]),
    ("x^2-{n}", ["-{n}+x^2", "(x^2-{n})"], ["x^2+{n}", "x-{n}"]),
    ("[{n},\\infty)", ["[{n},\\infty)", "x\\ge {n}"], ["({n},\\infty)", "[{m},\\infty)"]),
    ("{n}\\pi", ["{n}\\pi", "\\pi\\cdot {n}"], ["{m}\\pi", "{n}"]),
)
WEIGHTS = (7, 1, 1, 1, 1, 1, 1, 1)  # half integers; DAPO's golds are nothing else, those of MATH all sorts
HOSTILE = (
    "{n}^{{10^{{10^{{{m}}}}}}}",
    "{n}0000000!",
    "(a+b+c+d+e)^{{{n}}}",
    "{n}" * 40_000,
    "\\frac{{1}}{{" * 300 + "{n}" + "}}" * 300,
    "\\sum_{{k=1}}^{{10^{{{m}}}}} k^k",
    "\\binom{{10^9}}{{{n}000000}}",
    "__import__('os').abort(){n}",
)
STEPS = (
    "Let $x = {n}$ and consider $\\frac{{x^2 - {m}}}{{x + 1}}$; we get $\\boxed{{?}}$ later on.",
    "Then $\\sqrt{{{n} + {m}}} \\le {p}$, so we may assume that $k \\in \\{{1, \\dots, {n}\\}}$.",
    "Wait, that is not right. Since ${n} \\equiv {m} \\pmod{{{p}}}$, we try again.",
    "\\[\n\\sum_{{i=1}}^{{{n}}} i = \\frac{{{n}({n}+1)}}{{2}}\n\\]",
)
ENDLESS = "\\binom{{10^9}}{{{n}999}}"


class Timed(Grader):
    """Remembers how long each comparison took, and which."""

    def __init__(self, *args):
        super().__init__(*args)
        self.took: list[tuple[float, str, str]] = []
        self.lock = threading.Lock()

    def _ask(self, gold, rules, answer):
        start = time.perf_counter()
        try:
            return super()._ask(gold, rules, answer)
        finally:
            with self.lock:
                self.took.append((time.perf_counter() - start, gold, answer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=1274, help="(%(default)s)")
    parser.add_argument("--n", type=int, default=32, help="responses to a question (%(default)s)")
    parser.add_argument("--characters", type=int, default=0, help="make every response at least so long")
    parser.add_argument("--workers", type=int, help="grading processes (default: one per core)")
    options = parser.parse_args()
    rng = random.Random(0)
    questions = [make_question(rng, number, options) for number in range(options.questions)]
    length = sum(len(row[0]) for _, rows in questions for row in rows) // (options.questions * options.n)
    print(f"{options.questions} questions x {options.n} responses of {length:,} characters on average")
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    measure(questions, options)


def make_question(rng: random.Random, number: int, options) -> tuple[Question, list[tuple[str, bool]]]:
    """A question, and (response, whether it is right) for each of its samples."""
    gold, right, wrong = rng.choices(PROBLEMS, WEIGHTS)[0]
    values = {"n": rng.randint(20, 900), "m": 10 + 17 * rng.randint(60, 90), "p": rng.choice([2, 3, 5, 7, 11, 13])}
    values["n"] += values["n"] % 17 == 0  # n/m stays reduced, and no root comes out
    solved = rng.betavariate(0.5, 0.6)  # most questions are easy or hard
    rows = [make_response(rng, values, right, wrong, solved, options) for _ in range(options.n)]
    return Question(str(number), f"question {number}", gold.format(**values)), rows


def make_response(rng, values: dict, right: list[str], wrong: list[str], solved: float, options) -> tuple[str, bool]:
    kind = "right" if rng.random() < solved else "wrong"
    kind = rng.choices((kind, "none", "hostile"), (87.5, 10, 2.5))[0]
    if kind == "hostile":
        template = ENDLESS if rng.random() < 0.04 else rng.choice(HOSTILE)
        answer = template.format(**values | {"n": rng.randint(100, 999)})
    elif kind == "wrong":
        far = values | ({"n": rng.randint(901, 2000) * 2 + 1} if rng.random() < 0.5 else {})
        answer = rng.choice(wrong).format(**far)
    else:
        answer = rng.choice(right).format(**values) if kind == "right" else None
    text = derivation(rng, answer)
    return "Let us see.\n" * max(0, (options.characters - len(text)) // 12) + text, kind == "right"


def derivation(rng: random.Random, answer: str | None) -> str:
    length, lines = int(rng.lognormvariate(7.9, 0.7)), []
    while sum(map(len, lines)) < min(max(length, 300), 8000):
        numbers = {name: rng.randint(2, 99) for name in "nmp"}
        lines.append(rng.choice(STEPS).format(**numbers))
    ending = rng.choice(["Hence $\\boxed{%s}$.", "Answer: %s", "Answer: $%s$"]) if answer else ""
    if "box" not in ending:  # a box on the way would be the answer
        lines = [line.replace("\\boxed{?}", "?") for line in lines]
    lines += [ending % answer] if answer else []
    return "\n".join(lines) + "<|im_end|>"


def measure(questions: list, options) -> None:
    protocol = PROTOCOLS["default"]
    before, start = spent(), time.perf_counter()
    with Timed(protocol.extraction, protocol.scorer, options.workers) as grader:
        graded = list(grader.map(lambda each: grader.grade_samples(each[0], [row[0] for row in each[1]]), questions))
        seconds = time.perf_counter() - start
    core_seconds = spent() - before
    check(questions, graded)
    done = options.questions * options.n
    errors = Counter(grade["error"] for grades in graded for grade in grades if grade["error"])
    ended = ", ".join(f"{count} {name}" for name, count in errors.items()) or "none"
    print(f"{done:,} gradings in {seconds:.1f} s with {grader.workers} workers: {done / seconds:,.0f} a second")
    print(f"{len(grader.took):,} comparisons in the processes, the other answers were known; cut off: {ended}")
    print(f"{core_seconds / 60:.2f} core-minutes, {core_seconds / done * 1000:.2f} ms of a core a grading", end="; ")
    print(f"{GRADINGS:,} at this rate: {core_seconds / done * GRADINGS / 60:.2f} core-minutes (limit {CORE_MINUTES})")
    print("slowest comparisons, wall time:")
    for took, gold, answer in sorted(grader.took, reverse=True)[:5]:
        print(f"  {took:6.2f} s  {gold[:30]:<32}{answer[:60]}")


def check(questions: list, graded: list) -> None:
    for (question, rows), grades in zip(questions, graded, strict=True):
        for (response, correct), grade in zip(rows, grades, strict=True):
            assert grade["correct"] == correct, (question.gold, response[-80:], grade)


def spent() -> float:
    """Seconds of processor time of this process and of all its processes that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
