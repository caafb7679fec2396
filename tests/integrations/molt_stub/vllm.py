"""Stands in for vLLM, which Molt imports and these tests never generate with: its wheel needs CUDA."""

__version__ = "0.32.0"


class SamplingParams: ...
