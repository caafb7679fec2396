"""Questions of three kinds, files of them, and the command that finds their topics."""

from pathlib import Path

import pyarrow.parquet as pq

GEOMETRY = (
    r"In $\triangle ABC$ the angle at $A$ is ${n}^\circ$ and $AB = {m}$. Find the area of the triangle.",
    "A circle of radius {n} is tangent to two sides of a triangle with perimeter {m}. Find its distance to a vertex.",
    r"Two circles with radii {n} and {m} intersect at $P$ and $Q$. Find $\angle PQR$.",
    r"A quadrilateral is inscribed in a circle of radius ${n}$; one diagonal is $\frac{{{m}}}{{2}}$. Find the other.",
    "Find the altitude of an isosceles triangle with base {n} and two sides of length {m}.",
)
PROBABILITY = (
    "A fair die is rolled {n} times. What is the probability that the sum is at least {m}?",
    "An urn holds {n} red and {m} blue balls; two balls are drawn at random. Find the probability that both are red.",
    "A coin shows heads with probability 1/{n}. What is the expected number of tosses until {m} heads appear?",
    "Cards are drawn at random from a deck of {m} cards. What is the probability that the first {n} are aces?",
    "A random variable is uniform on {{1, ..., {m}}}. What is the probability that it is divisible by {n}?",
)
CALCULUS = (
    r"Evaluate the integral $\int_0^{{{n}}} x^{{{m}}} e^x \, dx$.",
    r"Find the derivative of $f(x) = \sin({n}x) e^{{{m}x}}$ at $x = 0$.",
    r"Compute the limit $\lim_{{x \to 0}} \frac{{\sin {n}x}}{{{m}x}}$ with L'Hopital's rule.",
    r"Find the definite integral $\int_1^{{{m}}} \frac{{\ln x}}{{x^{n}}} \, dx$ by integration by parts.",
    r"At which point does the function $f(x) = x^3 - {n}x^2 + {m}x$ have a vanishing second derivative?",
)


def fill(template: str, i: int) -> str:
    if "{{" in template:
        return template.format(n=i + 2, m=3 * i + 7)
    return template.replace("{n}", str(i + 2)).replace("{m}", str(3 * i + 7))


def rows_of(questions: list[str], **columns) -> list[dict]:
    return [
        {"id": f"q{i}", "prompt": f"Solve: {q}", "label": str(i), "question": q, "datasource": "test"}
        | {name: values[i] for name, values in columns.items()}
        for i, q in enumerate(questions)
    ]


def read(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist()
