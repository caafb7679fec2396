"""Compare a model's weights with its configuration: by the names and shapes of transformers' own class, built without
memory, and where transformers is not installed by their number."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

# Settings of models whose number of weights does not follow from the usual ones, or that are quantized.
UNUSUAL = re.compile(
    "quantization|lora|latent|shared|_config$|expert|moe|hybrid|mamba|conv|ssm|linear_attn|embedding_size"
)
PARTS, MAX_PARTS = re.compile("layer|expert|block|depth|stage|heads"), 2048
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")

Shapes = Mapping[str, list[int]]


def missing_weights(config: dict, shapes: Shapes) -> Iterator[str]:
    """List what the weights lack of the configuration's model; each problem follows "config.json"."""
    expected = expected_shapes(config)
    if not expected:
        yield from too_few(config, shapes)
        return
    lacking = [name for name in expected if name not in shapes]
    if lacking and not any(name in shapes for name in expected):
        needed, found = (sum(map(math.prod, each.values())) for each in (expected, shapes))
        if found < needed:
            yield f"is of a model with {needed:,} weights, and the files hold {found:,}"
        return
    wrong = [name for name in expected if name in shapes and list(shapes[name]) != expected[name]]
    for name, problem in [*((n, "is missing") for n in lacking), *((n, f"is {shapes[n]}") for n in wrong)][:1]:
        more = len(lacking) + len(wrong) - 1
        yield f"has {name} of {expected[name]}, which {problem}{f' ({more} others differ too)' if more else ''}"


def too_few(config: dict, shapes: Shapes) -> Iterator[str]:
    """Compare the number of weights with the least that a decoder of these sizes has, where its settings are the usual
    ones."""
    sizes = [config.get(name) for name in SIZES]
    if not all(type(size) is int and size > 0 for size in sizes):
        return
    if any(UNUSUAL.search(name) and value for name, value in config.items()):
        return
    vocabulary, hidden, layers, heads, inner = sizes
    width = heads * (config.get("head_dim") or hidden // heads)
    needed = vocabulary * hidden + layers * 2 * hidden * (width + inner)
    found = sum(map(math.prod, shapes.values()))
    if found < needed:
        yield f"is of a model with at least {needed:,} weights, and the files hold {found:,}"


def expected_shapes(config: dict) -> dict[str, list[int]]:
    """Name -> shape of every weight that transformers' class of the configuration loads; {} if there is no such class
    here, or its files have other names than it."""
    classes = config.get("architectures")
    if not config.get("model_type") or not classes or config.get("quantization_config") or is_huge(config):
        return {}
    try:
        import transformers
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        if get_checkpoint_conversion_mapping(config["model_type"]):
            return {}
        settings = transformers.AutoConfig.for_model(**config)
        build = getattr(transformers, classes[0])._from_config
        import torch

        with torch.device("meta"):
            model = build(settings)
    except Exception:  # not installed, no such class, or a configuration that it does not take
        return {}
    tied = model.all_tied_weights_keys  # empty where the configuration ties none
    ignored = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_load_missing", None) or ()]
    return {
        name: list(tensor.shape)
        for name, tensor in model.state_dict().items()
        if name not in tied and not any(pattern.search(name) for pattern in ignored)
    }


def is_huge(value: object, name: str = "") -> bool:
    """True if a configuration asks for so many parts of a model that building it would not end."""
    if isinstance(value, dict):
        return any(is_huge(each, str(key)) for key, each in value.items())
    if isinstance(value, list):
        return len(value) > MAX_PARTS or any(is_huge(each, name) for each in value)
    return isinstance(value, (int, float)) and value > MAX_PARTS and bool(PARTS.search(name))
