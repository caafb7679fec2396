"""A benchmark of your own: this file and measures.jsonl, outside the package. Run it in this folder:

openrlhf-ebpo eval --model Qwen/Qwen3-0.6B --template boxed --chat_template --tasks measures:TASK --output_dir results

Elsewhere, put the folder on PYTHONPATH. It is scored, resumed, reported and pushed like every other task. A benchmark
of the package is the same: a file in eval/tasks/, and its name in eval/tasks/__init__.py.
"""

from pathlib import Path

from openrlhf_ebpo.eval.tasks import Benchmark, Rules


def in_its_unit(question: str, row: dict) -> str:
    """The question as it is asked. What to do with it ("put the answer into a box") is the template's to say."""
    return f"{question} Give the answer in {row['unit']}."


def near_enough(row: dict, answer: float) -> Rules:
    """Compare a response with the gold answer: "0.1 km" is 0.1 where the unit is km, and 101 m is not 100 m
    unless the tolerance says so. Rules has the rest: several answers, tuples, intervals.

    A ValueError here, or above, leaves the row out and says why: it is for rows that cannot be answered.
    """
    if row["tolerance"] < 0:
        raise ValueError(f"its tolerance is {row['tolerance']}")
    return Rules(unit=row["unit"], tolerance=row["tolerance"])


TASK = Benchmark(
    "measures",  # the name of its results: among those of the package it must not be
    about="measures: lengths, times and masses with units",
    # Where the rows are. A data set on the Hub is HubSet("owner/name", "test"); `--tasks measures:TASK=FILE` is another
    # file.
    copies=(Path(__file__).with_name("measures.jsonl"),),
    question=("question",),  # names that the columns may have; the first that exists counts
    answer=("value",),
    columns=("unit", "tolerance"),  # what the functions read besides, so that the Hub is asked for it
    prompt=in_its_unit,
    rules=near_enough,
    rows=(8,),  # a copy with another number of rows is noted in the report
)
