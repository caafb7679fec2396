"""In place of vLLM in evaluations: a model that can be looked at, and responses as the engines leave them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def write_model(path: Path, architecture: str = "Qwen3ForCausalLM", model_type: str = "qwen3") -> str:
    path.mkdir(parents=True)
    config = {"architectures": [architecture], "model_type": model_type}
    config["quantization_config"] = {"bits": 4}  # quantized weights are not compared with the configuration
    (path / "config.json").write_text(json.dumps(config))
    save_file({"weight": np.zeros(2)}, path / "model.safetensors")
    return str(path)


def record(responses: list[str]) -> dict:
    """Return a question's record in the progress file; an empty response is truncated."""
    return {
        "responses": responses,
        "lengths": [max(len(text), 1) for text in responses],
        "finish_reasons": ["length" if not text else "stop" for text in responses],
        "prompt": "",
        "seed": 42,
    }
