"""OlympiadBench, its English questions of mathematics with answers that can be compared (OE_TO_maths_en_COMP).

Hothan's copy has question, context, final_answer (a list) and RULE_COLUMNS; Qwen2.5-Math's has 675
rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from .benchmark import Benchmark
from .task_rows import HubSet
from .types import RULE_COLUMNS, column_rules


def with_context(question: str, row: Mapping) -> str:
    context = row.get("context")
    return f"{context.strip()}\n\n{question}" if isinstance(context, str) and context.strip() else question


TASK = Benchmark(
    "olympiadbench",
    about="OlympiadBench: 674 questions; is_multiple_answer, unit, error (tolerance), answer_type of a row",
    copies=(HubSet("Hothan/OlympiadBench", "train", "OE_TO_maths_en_COMP"),),
    question=("question", "problem"),
    answer=("final_answer", "answer"),
    columns=("context", *RULE_COLUMNS),
    prompt=with_context,
    rules=column_rules,
    rows=(674, 675),
)
