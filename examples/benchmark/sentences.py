"""A benchmark of your own with its own scorer, all in one file: questions, prompt, score. Run it in this folder:

openrlhf-ebpo eval --model Qwen/Qwen3-0.6B --template raw --chat_template --tasks sentences:TASK --output_dir results

No answer is the right one here, so there is no gold answer: the code looks whether a response does as it was told.
"""

import re
from collections.abc import Mapping

from openrlhf_ebpo.eval.tasks import Benchmark

QUESTIONS = (
    {"question": "Say something about the sea.", "words": 5, "with": "blue"},
    {"question": "Say something about winter.", "words": 7, "with": "snow"},
    {"question": "Say something about music.", "words": 6, "with": "drum"},
    {"question": "Say something about bread.", "words": 8, "with": "warm"},
)


def prompt(question: str, row: Mapping) -> str:
    """The question as it is asked. The template of the protocol goes around it."""
    return f'{question} Write one sentence of exactly {row["words"]} words, one of them "{row["with"]}".'


def last_line(response: str) -> str | None:
    """Return the answer of a response, by which responses vote (maj@k). None: no answer, and wrong."""
    lines = [line.strip() for line in response.splitlines() if line.strip()]
    return lines[-1].lower() if lines else None


def score(response: str, gold: str, row: Mapping) -> bool:
    """Return True if the response is right; a number of 1 or more is, too. gold is "" here.

    It runs in a separate process. Where it raises, takes more than two seconds of processor time (`seconds=` gives it
    another limit) or all memory, or ends the process, the response is wrong, and the report says how many and why.
    """
    words = re.findall(r"[\w'-]+", last_line(response) or "")
    return len(words) == row["words"] and row["with"] in words


TASK = Benchmark(
    "sentences",  # the name of its results
    about="sentences: as many words as asked for, one of them given",
    data=QUESTIONS,  # or copies=(Path(…),) or copies=(HubSet(…),), and then columns=("words", "with")
    answer=(),  # there is no column with a gold answer
    prompt=prompt,
    score=score,
    extract=last_line,
)
