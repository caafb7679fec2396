"""Calls of OpenRLHF and this project into vLLM and transformers that have no row, checked against the installed source.

OpenRLHF pins one version of each; beside another torch they are others (releases.BESIDE_TORCH). A name that has moved, or a
parameter that is gone, would show hours later, inside an engine.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass

from openrlhf_ebpo.seams.check import parsed
from openrlhf_ebpo.seams.stack import module_path


@dataclass(frozen=True)
class Relied:
    """A name of another package (`Class.member` too), with the parameters that it is called with."""

    module: str
    name: str
    takes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


ENGINE = "vllm.v1.engine.async_llm"
AUTO = "transformers.models.auto"
RELIED = (
    # vLLM: the rollout actor (openrlhf.trainer.ray.vllm_engine), engines/
    Relied("vllm", "AsyncLLMEngine"),
    Relied(
        "vllm",
        "AsyncEngineArgs",
        (
            *("model", "seed", "dtype", "max_model_len", "enforce_eager", "tensor_parallel_size", "trust_remote_code"),
            *("worker_extension_cls", "distributed_executor_backend", "enable_prefix_caching", "enable_sleep_mode"),
            *("gpu_memory_utilization", "logprobs_mode", "max_logprobs", "limit_mm_per_prompt"),
            *("max_num_batched_tokens", "max_num_seqs", "disable_log_stats"),
        ),
    ),
    Relied(ENGINE, "AsyncLLM.from_engine_args", ("engine_args",)),
    Relied(ENGINE, "AsyncLLM.collective_rpc", ("method", "args")),
    Relied(ENGINE, "AsyncLLM.generate", ("prompt", "sampling_params", "request_id")),
    Relied(ENGINE, "AsyncLLM.pause_generation", ("mode",)),
    Relied(ENGINE, "AsyncLLM.resume_generation"),
    Relied(ENGINE, "AsyncLLM.reset_prefix_cache"),
    Relied(ENGINE, "AsyncLLM.sleep", ("level",)),
    Relied(ENGINE, "AsyncLLM.wake_up", ("tags",)),
    Relied(ENGINE, "AsyncLLM.is_sleeping"),
    Relied(ENGINE, "AsyncLLM.errored"),
    Relied("vllm.v1.engine.output_processor", "OutputProcessor.get_num_unfinished_requests"),
    Relied("vllm.v1.engine.core_client", "BackgroundResources", ("engine_manager",)),
    Relied("vllm.v1.engine.exceptions", "EngineDeadError"),
    Relied("vllm.config", "ModelConfig", ("model", "max_model_len", "trust_remote_code", "dtype")),
    Relied("vllm.usage.usage_lib", "UsageContext.LLM_CLASS"),
    Relied(
        "vllm",
        "SamplingParams",
        (
            *("temperature", "top_p", "top_k", "min_p", "stop", "max_tokens", "min_tokens", "logprobs"),
            *("skip_special_tokens", "output_kind", "detokenize"),
        ),
    ),
    Relied("vllm.sampling_params", "RequestOutputKind.FINAL_ONLY"),
    Relied("vllm.inputs", "TokensPrompt", ("prompt_token_ids", "multi_modal_data")),
    Relied("vllm.utils", "random_uuid"),
    # vLLM: weights (openrlhf.utils.distributed_util, vllm_worker_wrap)
    Relied("vllm.distributed.device_communicators.pynccl", "PyNcclCommunicator", ("group", "device")),
    Relied("vllm.distributed.device_communicators.pynccl", "PyNcclCommunicator.broadcast", ("tensor", "src", "stream")),
    Relied("vllm.distributed.utils", "StatelessProcessGroup.create", ("host", "port", "rank", "world_size")),
    Relied("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
    # transformers: the policy (openrlhf.models), seams/auto_map.py
    Relied(f"{AUTO}.modeling_auto", "AutoModelForCausalLM"),
    Relied(f"{AUTO}.modeling_auto", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    Relied(f"{AUTO}.configuration_auto", "CONFIG_MAPPING_NAMES"),
    Relied(f"{AUTO}.tokenization_auto", "TOKENIZER_MAPPING_NAMES"),
    Relied(f"{AUTO}.tokenization_auto", "tokenizer_class_from_name", ("class_name",)),
    Relied("transformers.integrations.deepspeed", "HfDeepSpeedConfig"),
    Relied("transformers.masking_utils", "find_packed_sequence_indices", ("position_ids",)),  # packing with sdpa
    Relied("transformers.trainer", "get_scheduler"),
)


def problem(relied: Relied) -> str | None:
    """Return what the installed source lacks; None if it has everything."""
    found = definition(relied.module, relied.name)
    if found is None:
        return "is gone"
    known = parameters(*found) if relied.takes else None
    missing = [] if known is None else [name for name in relied.takes if name not in known]
    return f"takes no {', '.join(missing)}" if missing else None


def definition(module: str, name: str) -> tuple[str, ast.AST] | None:
    """Find where and how a name is defined, through the modules that only pass it on; a member may be a base class's."""
    if importlib.util.find_spec(module.partition(".")[0]) is None or not (path := module_path(module)).is_file():
        return None
    first, _, member = name.partition(".")
    node = _named(parsed(path.read_text(encoding="utf-8"))[0].body, first)
    if isinstance(node, ast.ImportFrom):
        own = next(alias.name for alias in node.names if first in (alias.asname, alias.name))
        return definition(_source(node, module, path.name), f"{own}.{member}" if member else own)
    if node is None or not member:
        return node and (module, node)
    if not isinstance(node, ast.ClassDef):
        return None
    inner = _named(node.body, member)
    if inner is not None:
        return module, inner
    inherited = (definition(module, f"{base}.{member}") for base in _bases(node))
    return next(filter(None, inherited), None)


def parameters(module: str, node: ast.AST) -> set[str] | None:
    """Return the parameters of a function or class; None if it takes, or may take, anything."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args
        named = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        return None if arguments.kwarg else named
    if not isinstance(node, ast.ClassDef):
        return None
    if (own := _named(node.body, "__init__")) is not None:
        return parameters(module, own)
    fields = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
    for found in filter(None, (definition(module, base) for base in _bases(node))):
        fields |= parameters(*found) or set()
    return fields


def _named(body: list[ast.stmt], name: str) -> ast.AST | None:
    return next((node for node in _statements(body) if name in _names(node)), None)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """With those under `if` and `try`: there packages name what they load late."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _statements([*node.body, *node.orelse, *getattr(node, "finalbody", ())])


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return {target.id for target in targets if isinstance(target, ast.Name)} | {getattr(node, "name", "")}


def _bases(node: ast.ClassDef) -> list[str]:
    return [base.id for base in node.bases if isinstance(base, ast.Name)]


def _source(node: ast.ImportFrom, module: str, file: str) -> str:
    if not node.level:
        return node.module
    package = module.split(".") if file == "__init__.py" else module.split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
