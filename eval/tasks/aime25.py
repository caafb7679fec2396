"""AIME 2025. Both copies have problem and answer."""

from .benchmark import Benchmark
from .rows import HubSet

TASK = Benchmark(
    "aime25",
    about="AIME 2025: 30 questions, the answers are integers",
    copies=(HubSet("math-ai/aime25", "test"), HubSet("yentinglin/aime_2025", "train")),
    integer=True,
    rows=(30,),
    reported={
        ("Qwen3-8B", 4): {
            "GRPO": 42.29,
            "Dr. GRPO": 32.71,
            "DAPO": 32.71,
            "EntropyMech": 30.42,
            "EBPO-naive": 41.88,
            "EBPO-topic": 47.92,
        },
        ("Qwen3-14B", 4): {
            "GRPO": 37.92,
            "Dr. GRPO": 39.79,
            "DAPO": 51.46,
            "EntropyMech": 40.83,
            "EBPO-naive": 40.21,
            "EBPO-topic": 45.63,
        },
        ("LLaMA3.1-8B", 4): {"GRPO": 0.00, "Dr. GRPO": 0.42, "DAPO": 0.00, "EntropyMech": 0.21, "EBPO-topic": 0.21},
        ("Qwen3-8B", 8): {"GRPO": 31.46, "DAPO": 28.33, "EBPO-topic": 48.96},
        ("Qwen3-8B", 16): {"GRPO": 44.58, "DAPO": 37.92, "EBPO-topic": 46.46},
        ("Qwen3-8B", 32): {"GRPO": 40.00, "DAPO": 35.21, "EBPO-topic": 44.79},
    },
)
