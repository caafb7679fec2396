"""AMC 2023. math-ai's and Qwen2.5-Math's copies have question and answer, 27.0 or ["27.0"]."""

from .benchmark import Benchmark
from .rows import HubSet

TASK = Benchmark(
    "amc23",
    about="AMC 2023: 40 questions, the answers are integers",
    copies=(HubSet("math-ai/amc23", "test"),),
    integer=True,
    rows=(40,),
    other_sets={46: "another selection", 83: "AMC of 2022 and 2023 together"},
    reported={
        ("Qwen3-8B", 4): {
            "GRPO": 89.53,
            "Dr. GRPO": 85.00,
            "DAPO": 82.81,
            "EntropyMech": 79.99,
            "EBPO-naive": 87.34,
            "EBPO-topic": 86.25,
        },
        ("Qwen3-14B", 4): {
            "GRPO": 85.00,
            "Dr. GRPO": 82.97,
            "DAPO": 84.22,
            "EntropyMech": 78.75,
            "EBPO-naive": 86.56,
            "EBPO-topic": 85.47,
        },
        ("LLaMA3.1-8B", 4): {
            "GRPO": 12.66,
            "Dr. GRPO": 12.36,
            "DAPO": 11.09,
            "EntropyMech": 10.16,
            "EBPO-topic": 15.78,
        },
        ("Qwen3-8B", 8): {"GRPO": 79.69, "DAPO": 77.34, "EBPO-topic": 89.69},
        ("Qwen3-8B", 16): {"GRPO": 85.94, "DAPO": 76.87, "EBPO-topic": 85.94},
        ("Qwen3-8B", 32): {"GRPO": 86.88, "DAPO": 83.13, "EBPO-topic": 85.47},
    },
)
