"""AIME 2024. HuggingFaceH4's copy has problem and answer "025", Maxwell-Jia's Problem and Answer, math-ai's problem and
solution `\\boxed{204}`."""

from .benchmark import Benchmark
from .task_rows import HubSet

TASK = Benchmark(
    "aime24",
    about="AIME 2024: 30 questions, the answers are integers",
    copies=(
        HubSet("HuggingFaceH4/aime_2024", "train"),
        HubSet("Maxwell-Jia/AIME_2024", "train"),
        HubSet("math-ai/aime24", "test"),
    ),
    integer=True,
    rows=(30,),
)
