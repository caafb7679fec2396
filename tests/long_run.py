"""A run whose answers are long: thoughts, formulas, code, and marks of a chat template."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from space_runs import learning_run

PASSAGE = r"""**Step {i}.** With the quadratic formula, for \(n = {i}\),

\[
x
= \frac{{-b \pm \sqrt{{b^2 - 4ac}}}}{{2a}}
\]

so $x_{{{i}}}$ is known. It costs $20 and $30.

```python
def step_{i}(x):

    return x ** {i}  # $x$
```

\begin{{align*}}
a &= {i} \\
&= \sum_{{k=1}}^{{{i}}} 1
\end{{align*}}
"""
SYSTEM = r"Please reason step by step, and put your final answer within \boxed{}."
PROMPT = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"


def passages(characters: int) -> str:
    found, size, i = [], 0, 0
    while size < characters:
        found.append(PASSAGE.format(i=i))
        size, i = size + len(found[-1]), i + 1
    return "\n".join(found)


def long_run(directory: Path, characters: int = 120_000) -> Path:
    """Group 0 of its last step: a long answer after a thought, a long one alone, a thought that was cut off, short
    ones."""
    learning_run(directory, steps=2, seed=1, name="long", prompts=4, size=6)
    path = directory / "rollouts" / "step-000002.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows[:6]:
        row["prompt"] = PROMPT.format(system=SYSTEM, said=row["prompt"])
        row["response"] = f"{passages(2000)}\nSo the answer is \\boxed{{{row['label']}}}.<|im_end|>"
    rows[0]["response"] = f"<think>\n{passages(characters)}</think>\n\n{rows[0]['response']}"
    rows[1]["response"] = f"{passages(characters)}\nAnswer: needle {rows[1]['label']}"
    rows[2] |= {"response": f"<think>\n{passages(3000)}", "truncated": True}
    for row in rows[:6]:
        row["response_length"] = len(row["response"]) // 4
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    return directory
