"""A model whose weights are not those of its configuration is not complete"""

import json

import hub_runs
import numpy as np
import pytest
from safetensors.numpy import save_file

from openrlhf_ebpo.model_folder import expected_shapes, missing_weights, problems


def without(part: str):
    return lambda name, tensor: None if part in name else tensor


DAMAGES = {
    "no tensor at all": lambda name, tensor: None,
    "embeddings alone": lambda name, tensor: tensor if "embed" in name else None,
    "no MLP anywhere": without("mlp"),
    "stubs of ZeRO-3": lambda name, tensor: np.zeros(0, "float32"),
}
SMALLER = {
    "one projection of the MLP": without("up_proj"),
    "another shape": lambda name, tensor: tensor[:16] if "k_proj" in name else tensor,
    "no last norm": without("model.norm"),
}


def damaged(folder, change, **config):
    hub_runs.export_model(folder, 1, **hub_runs.CLASS | config)
    changed = {name: change(name, tensor) for name, tensor in hub_runs.tensors(1).items()}
    save_file({n: t for n, t in changed.items() if t is not None}, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_complete_model_is_taken(tmp_path):
    folder = hub_runs.export_model(tmp_path, 1, **hub_runs.CLASS)
    assert problems(folder) == [] and list(missing_weights(folder)) == []


@pytest.mark.parametrize("damage", [*DAMAGES, *SMALLER])
def test_every_weight_of_the_architecture_is_looked_for(tmp_path, damage):
    folder = damaged(tmp_path, {**DAMAGES, **SMALLER}[damage])
    (problem,) = missing_weights(folder)
    assert problem.startswith("config.json ") and any(word in problem for word in ("is missing", "is [", "hold 0"))


def test_an_untied_head_is_a_weight_and_a_tied_one_is_none(tmp_path):
    folder = hub_runs.export_model(tmp_path, 1, **hub_runs.CLASS, tie_word_embeddings=False)
    assert "lm_head.weight" in next(missing_weights(folder))


@pytest.mark.parametrize(
    "config",
    [{"model_type": "unknown"}, {"architectures": ["OwnModel"]}, {"quantization_config": {"bits": 4}}],
    ids=json.dumps,
)
def test_what_is_not_known_is_not_refused(tmp_path, config):
    folder = damaged(tmp_path, lambda name, tensor: tensor, **config)
    assert list(missing_weights(folder)) == []


@pytest.mark.parametrize(
    "config", [{"num_hidden_layers": 10**9}, {"text_config": {"num_experts": 10**8}}], ids=json.dumps
)
def test_a_configuration_of_endless_parts_is_not_built(config):
    assert expected_shapes({**hub_runs.CONFIG, **hub_runs.CLASS, **config}) == {}
