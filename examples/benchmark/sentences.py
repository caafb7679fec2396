"""A benchmark of your own with its own reward, all in one file: questions, prompt, reward. Run it in this folder:

openrlhf-ebpo eval --model Qwen/Qwen3-0.6B --template raw --chat_template --tasks sentences:TASK --output_dir results

No answer is the right one here: the reward looks whether a response does as it was told. It trains, too, with
--reward.remote_url sentences.py and a data set of such prompts and labels.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from openrlhf_ebpo.eval.tasks import Benchmark
from openrlhf_ebpo.rewards.math.math import response_of

QUESTIONS = (
    {"question": "Say something about the sea.", "answer": {"words": 5, "with": "blue"}},
    {"question": "Say something about winter.", "answer": {"words": 7, "with": "snow"}},
    {"question": "Say something about music.", "answer": {"words": 6, "with": "drum"}},
    {"question": "Say something about bread.", "answer": {"words": 8, "with": "warm"}},
)


def prompt(question: str, row: Mapping) -> str:
    """The question as it is asked. The template of the protocol goes around it."""
    wanted = row["answer"]
    return f'{question} Write one sentence of exactly {wanted["words"]} words, one of them "{wanted["with"]}".'


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    """Return the reward of one response, as OpenRLHF asks for it: 1 is right. labels: the answers above as JSON.

    "extracted" is what votes in maj@k; None: no answer. This runs in a separate process. If it raises, takes too long
    or all memory, or ends the process, the response is wrong, and the report says how many and why.
    """
    response, wanted = response_of(queries[0], prompts[0]), json.loads(labels[0])
    lines = [line.strip().lower() for line in response.splitlines() if line.strip()]
    words = re.findall(r"[\w'-]+", lines[-1]) if lines else []
    right = len(words) == wanted["words"] and wanted["with"] in words
    return {"rewards": float(right), "extracted": lines[-1] if lines else None}


TASK = Benchmark(
    "sentences",  # the name of its results
    about="sentences: as many words as asked for, one of them given",
    data=QUESTIONS,  # or copies=(Path(…),) or copies=(HubSet(…),)
    prompt=prompt,
    reward=Path(__file__),
)
