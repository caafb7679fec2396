"""A resume restores the optimizer, every rank lists its files, exports say the same when loaded: ZeRO 0, 2 and 3."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from two_ranks import outcomes_of

from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.upstream.policy.checkpoint import OFFLOAD_SUFFIX, without_offload_buffers

STAGES = (0, 2, 3)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """(stage, rank) -> what it saved, loaded and wrote; and the folder."""
    folder = tmp_path_factory.mktemp("resumed")
    found = outcomes_of(Path(__file__).with_name("ranks_that_resume.py"), folder)
    return folder, {(stage, rank): found[rank][str(stage)] for stage in STAGES for rank in (0, 1)}


@pytest.mark.parametrize("stage", STAGES)
def test_the_optimizers_numbers_are_the_checkpoints_and_the_schedules_shape_is_not(resumed, stage):
    """`run/changed_settings.py` says so to whoever resumes with others."""
    for rank in (0, 1):
        saved, loaded = (resumed[1][stage, rank][name] for name in ("saved", "loaded"))
        kept = ("initial_lr", "betas", "eps", "weight_decay", "step")
        assert {name: loaded[name] for name in kept} == {name: saved[name] for name in kept}
        assert saved["initial_lr"] == 1e-3 and saved["max_norm"] == 1.0 and loaded["max_norm"] == 9.0


@pytest.mark.parametrize("stage", STAGES)
def test_every_rank_lists_what_it_wrote_and_the_manifest_has_all(resumed, stage):
    folder, found = resumed
    checkpoint = folder / str(stage) / "global_step3"
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    wrote = [set(found[stage, rank]["wrote"]) for rank in (0, 1)]
    assert wrote[0] | wrote[1] == files.keys() == {path.name for path in checkpoint.glob("*.pt")}
    assert wrote[0] and not wrote[0] & wrote[1] and bool(wrote[1]) == (stage > 0)
    assert manifest.damage(checkpoint, contents=True) is None
    assert manifest.read(checkpoint).settings["actor.adam.lr"] == 1e-3


BUFFERS = ["exp_avg_offload_buffer", "exp_avg_sq_offload_buffer"]


def test_host_copies_of_a_sleeping_optimizer_are_neither_saved_nor_loaded(resumed):
    """DeepSpeed alone does both: should that end, upstream/policy/checkpoint.py can go."""
    for rank in (0, 1):
        found = resumed[1][3, rank]["buffers"]
        assert found["in use"] == found["theirs"] == BUFFERS
        assert found["ours"] == found["theirs, loaded by ours"] == []


def test_after_a_resume_the_moments_are_offloaded_to_the_cpu_again():
    """The GPU's place has the device "meta", which torch moves the state of such parameters to."""
    from deepspeed.runtime.zero.offload_states import offload_adam_states

    slept = adam("cpu")
    slept.step()
    offload_adam_states(slept, "cpu")
    woken, without = adam("meta"), adam("meta")
    woken.load_state_dict(slept.state_dict())
    offload_adam_states(woken, "cpu")
    assert devices(woken) == {"meta"}  # DeepSpeed alone: it takes what lies on the GPU for its host copy
    with without_offload_buffers(SimpleNamespace(optimizer=SimpleNamespace(optimizer=without))):
        without.load_state_dict(slept.state_dict())
    with pytest.raises(NotImplementedError, match="out of meta tensor"):  # a copy, to the CPU
        offload_adam_states(without, "cpu")
    assert devices(without) == {"cpu"}


def adam(device: str) -> torch.optim.Adam:
    parameter = torch.nn.Parameter(torch.ones(4, device=device))
    parameter.grad = torch.ones_like(parameter)
    return torch.optim.Adam([parameter])


def devices(optimizer: torch.optim.Adam) -> set[str]:
    """Of the host copies that there are."""
    (state,) = optimizer.state.values()
    return {value.device.type for name, value in state.items() if name.endswith(OFFLOAD_SUFFIX)}


@pytest.mark.parametrize("stage", STAGES)
def test_an_exported_model_with_tied_weights_says_the_same_when_loaded(resumed, stage):
    from transformers import AutoModelForCausalLM

    exported = resumed[0] / f"exported-{stage}"
    model, first = (AutoModelForCausalLM.from_pretrained(place) for place in (exported, resumed[0] / "model"))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    trained = torch.load(exported / "logits.pt").float()
    said, said_before = (each(torch.arange(12).reshape(2, 6)).logits.float() for each in (model, first))
    assert (said - trained).abs().max() < 0.1 < 0.5 < (said_before - trained).abs().max()  # in bfloat16
