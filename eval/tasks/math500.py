"""MATH-500. HuggingFaceH4's copy has problem, answer, subject, level and unique_id."""

from .benchmark import Benchmark
from .task_rows import HubSet

TASK = Benchmark(
    "math500",
    about="MATH-500: 500 questions",
    copies=(HubSet("HuggingFaceH4/MATH-500", "test"),),
    rows=(500,),
)
