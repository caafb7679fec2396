"""AIME 2025. Both copies have problem and answer."""

from .benchmark import Benchmark
from .task_rows import HubSet

TASK = Benchmark(
    "aime25",
    about="AIME 2025: 30 questions, the answers are integers",
    copies=(HubSet("math-ai/aime25", "test"), HubSet("yentinglin/aime_2025", "train")),
    integer=True,
    rows=(30,),
)
