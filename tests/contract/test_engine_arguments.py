"""vLLM's worker as upstream extends it, without a printed line for every tensor."""

import asyncio
import inspect
import sys
from types import SimpleNamespace

import pytest
import torch

from openrlhf_ebpo.generation import arguments, quiet_worker


class Worker:
    """Of vLLM, of which the extension becomes a further base, as in vllm/v1/worker/worker_base.py."""

    model_config = SimpleNamespace(dtype=torch.bfloat16)
    device = torch.device("cpu")

    def __init__(self):
        self.loaded = []
        model = SimpleNamespace(load_weights=lambda weights: self.loaded.extend(weights))
        self.model_runner = SimpleNamespace(model=model)
        self._model_update_with_ray = False
        self._model_update_group = SimpleNamespace(broadcast=lambda weight, src, stream: weight.fill_(2))


@pytest.fixture
def worker(monkeypatch):
    real_empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, device=None, **kwargs: real_empty(*args, **kwargs))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)

    def build(extension):
        return type("ExtendedWorker", (Worker, extension), {})()

    return build


def test_a_tensor_is_received_without_a_line(worker, capsys):
    from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

    for extension, lines in ((WorkerWrap, 1), (quiet_worker.QuietWorker, 0)):
        made = worker(extension)
        made.update_weight("head", torch.bfloat16, (2, 3), empty_cache=True)
        assert capsys.readouterr().out.count("update weight: head") == lines
        ((name, weight),) = made.loaded
        assert name == "head" and weight.tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize("method", ["update_weight", "update_weight_cuda_ipc"])
def test_what_fails_still_fails_and_printing_goes_on_afterwards(worker, capsys, method):
    before = sys.stdout
    with pytest.raises(AssertionError, match="mismatch dtype"):
        getattr(worker(quiet_worker.QuietWorker), method)("head", torch.float32, (1,))
    assert sys.stdout is before and capsys.readouterr().out == ""


def test_vllm_finds_the_extension_by_its_name_with_all_that_upstreams_has():
    from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
    from vllm.utils.import_utils import resolve_obj_by_qualname

    given = {}

    class Actor:
        async def __init__(self, **kwargs):
            given.update(kwargs)

    class Quiet(arguments.QuietRolloutActor, Actor):
        pass

    async def made(**kwargs):
        given.clear()
        await Quiet.__init__(object.__new__(Quiet), **kwargs)
        return given

    assert resolve_obj_by_qualname(arguments.UPSTREAMS_WORKER) is WorkerWrap
    name = asyncio.run(made(model="m", worker_extension_cls=arguments.UPSTREAMS_WORKER))["worker_extension_cls"]
    found = resolve_obj_by_qualname(name)
    assert found is quiet_worker.QuietWorker and issubclass(found, WorkerWrap)
    assert dir(found) == dir(WorkerWrap), "vLLM refuses an extension that has a name of its worker's"
    assert asyncio.run(made(worker_extension_cls="cpu.Other")) == {"worker_extension_cls": "cpu.Other"}


def test_upstreams_engines_hold_bf16_whatever_the_policy_holds():
    """Why --ds.param_dtype fp16 is refused (models/model_check.py)."""
    from openrlhf.trainer.ray import vllm_engine

    assert '"dtype": "bfloat16"' in inspect.getsource(vllm_engine.create_vllm_engines)
