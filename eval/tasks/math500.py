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
        ("Qwen3-8B", 4): {"GRPO": 65.60, "EBPO-naive": 68.58, "EBPO-topic": 76.80},
        ("Qwen3-14B", 4): {"GRPO": 75.73, "EBPO-naive": 72.08, "EBPO-topic": 71.01},
        ("LLaMA3.1-8B", 4): {"GRPO": 22.66, "EBPO-topic": 23.84},
        ("Qwen3-8B", 8): {"GRPO": 68.79, "EBPO-topic": 74.26},
        ("Qwen3-8B", 16): {"GRPO": 77.98, "EBPO-topic": 77.39},
        ("Qwen3-8B", 32): {"GRPO": 76.94, "EBPO-topic": 72.24},
    },
)
