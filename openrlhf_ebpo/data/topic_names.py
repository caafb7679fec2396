"""Name groups of mathematics questions by the words that are typical of each."""

from __future__ import annotations

import re

import numpy as np

WORDS = 3

# LaTeX commands that tell the topic, by the word they stand for; all others are typesetting and are dropped.
_COMMANDS = {
    "angle": "angle",
    "binomial": "binom dbinom tbinom",
    "degree": "circ",
    "determinant": "det",
    "integral": "iint int",
    "limit": "lim",
    "logarithm": "ln log",
    "modulo": "bmod mod pmod",
    "parallel": "parallel",
    "perpendicular": "perp",
    "product": "prod",
    "root": "sqrt",
    "sum": "sum",
    "triangle": "triangle",
    "trigonometric": "cos sin tan",
    "vector": "vec",
}
COMMANDS = {name: word for word, names in _COMMANDS.items() for name in names.split()}
COMMAND = re.compile(r"\\([a-zA-Z]+)")
MATRIX = re.compile(r"\\begin\s*\{[bpvBV]?matrix\}")
NO_WORDS = re.compile(  # drawings, addresses, and commands whose argument is a name
    r"\[asy\].*?(?:\[/asy\]|$)|https?://\S+|\\(?:begin|end|label|includegraphics|[hv]space)\*?(?:\[[^]]*\])?\{[^}]*\}",
    re.DOTALL,
)
WORD = re.compile(r"[^\W\d_]{3,}")

# Words of mathematics questions on any topic.
_FILLER = (
    "answer answers assume calculate choose compute condition conditions consider define defined denote denoted "
    "determine different distinct does equal equals evaluate exactly exist exists express expressed expression find "
    "following follows form given gives greatest holds integer integers largest least let make maximum minimum number "
    "numbers obtain positive possible problem prove real respectively result satisfied satisfies satisfy satisfying "
    "say shown simplest simplify smallest solution solutions solve suppose total true use used using value values way "
    "ways write written"
)
FILLER = frozenset(_FILLER.split())


def topic_words(text: str) -> list[str]:
    """Return the words of a question that can tell its topic: no typesetting, no variables, no filler.

    >>> topic_words(r"Find the area of $\\triangle ABC$ with $\\frac{AB}{AC} = \\sqrt{2}$.")
    ['area', 'triangle', 'root']
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    text = NO_WORDS.sub(" ", MATRIX.sub(" matrix ", text))
    text = COMMAND.sub(lambda match: f" {COMMANDS.get(match[1], '')} ", text)
    found = (word.lower() for word in WORD.findall(text) if not word[1:].isupper())
    return [word for word in found if word not in ENGLISH_STOP_WORDS and word not in FILLER]


def names(texts: list[str], labels: np.ndarray) -> list[str]:
    """Name each label 0..max differently, by its most typical words, like "triangle, circle, angle": by scikit-learn's
    tf-idf, with all questions of a label as one text. A word counts once per question."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    bags = [set(topic_words(text)) for text in texts]
    vocabulary = set().union(*bags)
    of_label: list[list[str]] = [[] for _ in range(labels.max() + 1)]
    for bag, label in zip(bags, labels, strict=True):
        stems = {word: [word[: -len(end)] for end in ("s", "es") if word.endswith(end)] for word in bag}
        # without a plural ending, if the data has that word too
        of_label[label] += sorted({next((s for s in stems[word] if s in vocabulary), word) for word in bag})
    vectorizer = TfidfVectorizer(analyzer=list)
    weight = vectorizer.fit_transform([*of_label, ["words"]]).toarray()[:-1]  # never an empty vocabulary
    terms = vectorizer.get_feature_names_out()
    taken: list[str] = []
    for row in weight:  # if a name is taken already, one word more, then a number
        typical = [terms[j] for j in np.argsort(-row, kind="stable") if row[j] > 0]
        lengths = range(WORDS, max(len(typical), WORDS) + 1)
        candidates = [", ".join(typical[:n]) or "no words" for n in lengths]
        numbered = (f"{candidates[0]} ({i})" for i in range(2, len(weight) + 2))
        taken.append(next(name for name in [*candidates, *numbered] if name not in taken))
    return taken
