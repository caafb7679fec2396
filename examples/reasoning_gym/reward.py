"""reasoning-gym's own scorers as a reward, full marks or nothing. Some scorers run the answer as Python."""

import functools
import json
import sys

from openrlhf_ebpo.rewards.math.extraction import extract_answer, opened_thoughts, without_thoughts
from openrlhf_ebpo.rewards.math.math import response_of

sys.modules.setdefault("pycosat", type(sys)("pycosat"))  # it has no wheel, and zebra puzzles alone use it
import reasoning_gym  # noqa: E402

create = functools.cache(lambda name, given: reasoning_gym.create_dataset(name, **{**json.loads(given), "size": 1}))


def reward_func(queries, prompts, labels):
    """OpenRLHF asks for one response at a time."""
    (query,), (prompt,), (label,) = queries, prompts, labels
    kept = json.loads(label, object_hook=lambda each: tuple(each["()"]) if each.keys() == {"()"} else each)
    response = without_thoughts(response_of(query, prompt), bool(opened_thoughts(prompt)))
    _, tag, tagged = response.rpartition("<answer>")
    answer = tagged.partition("</answer>")[0] if tag else extract_answer(tagged) or tagged
    task, answer = create(kept["name"], json.dumps(kept["settings"])), answer.strip()
    return {"rewards": float(task.score_answer(answer, kept["entry"]) >= 1), "extracted": answer or None}
