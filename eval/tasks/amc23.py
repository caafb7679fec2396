"""AMC 2023. math-ai's and Qwen2.5-Math's copies have question and answer, 27.0 or ["27.0"]."""

from .benchmark import Benchmark
from .task_rows import HubSet

TASK = Benchmark(
    "amc23",
    about="AMC 2023: 40 questions, the answers are integers",
    copies=(HubSet("math-ai/amc23", "test"),),
    integer=True,
    rows=(40,),
)
