"""MATH-500. HuggingFaceH4's copy has problem, answer, subject, level and unique_id."""

from .benchmark import Benchmark
from .rows import HubSet

TASK = Benchmark(
    "math500",
    about="MATH-500: 500 questions",
    copies=(HubSet("HuggingFaceH4/MATH-500", "test"),),
    rows=(500,),
    other_sets={5000: "the whole MATH test set"},
    reported={
        ("Qwen3-8B", 4): {
            "GRPO": 65.60,
            "Dr. GRPO": 67.68,
            "DAPO": 58.39,
            "EntropyMech": 53.88,
            "EBPO-naive": 68.58,
            "EBPO-topic": 76.80,
        },
        ("Qwen3-14B", 4): {
            "GRPO": 75.73,
            "Dr. GRPO": 73.63,
            "DAPO": 67.68,
            "EntropyMech": 59.94,
            "EBPO-naive": 72.08,
            "EBPO-topic": 71.01,
        },
        ("LLaMA3.1-8B", 4): {
            "GRPO": 22.66,
            "Dr. GRPO": 22.12,
            "DAPO": 18.05,
            "EntropyMech": 15.01,
            "EBPO-topic": 23.84,
        },
        ("Qwen3-8B", 8): {"GRPO": 68.79, "DAPO": 56.63, "EBPO-topic": 74.26},
        ("Qwen3-8B", 16): {"GRPO": 77.98, "DAPO": 73.26, "EBPO-topic": 77.39},
        ("Qwen3-8B", 32): {"GRPO": 76.94, "DAPO": 72.71, "EBPO-topic": 72.24},
    },
)
