"""AIME 2024. HuggingFaceH4's copy has problem and answer "025", Maxwell-Jia's Problem and Answer, math-ai's problem and
solution `\\boxed{204}`."""

from .benchmark import Benchmark
from .rows import HubSet

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
    other_sets={90: "AIME of 2022, 2023 and 2024 together"},
    reported={
        ("Qwen3-8B", 4): {
            "GRPO": 50.21,
            "Dr. GRPO": 51.04,
            "DAPO": 45.63,
            "EntropyMech": 37.92,
            "EBPO-naive": 53.75,
            "EBPO-topic": 56.04,
        },
        ("Qwen3-14B", 4): {
            "GRPO": 49.99,
            "Dr. GRPO": 53.33,
            "DAPO": 57.29,
            "EntropyMech": 49.37,
            "EBPO-naive": 52.29,
            "EBPO-topic": 58.13,
        },
        ("LLaMA3.1-8B", 4): {"GRPO": 2.71, "Dr. GRPO": 2.91, "DAPO": 2.29, "EntropyMech": 1.25, "EBPO-topic": 2.29},
        ("Qwen3-8B", 8): {"GRPO": 47.29, "DAPO": 35.42, "EBPO-topic": 64.37},
        ("Qwen3-8B", 16): {"GRPO": 55.42, "DAPO": 46.67, "EBPO-topic": 60.00},
        ("Qwen3-8B", 32): {"GRPO": 59.37, "DAPO": 46.67, "EBPO-topic": 61.04},
    },
)
