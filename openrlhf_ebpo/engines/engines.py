"""Generate responses to many prompts with vLLM engines on all GPUs of a Ray cluster: the rollout path of training.

The engines are upstream's rollout actors with this project's seams, so a prompt is tokenised, truncated, sampled and
(where a reward or an agent is given) scored by the code that trains. Nothing is trained, nothing is written.

    prepare_process()  # first of all, before transformers or vLLM is imported
    with started(EngineSettings("Qwen/Qwen3-8B", max_len=10240, num_engines=8)) as actors:
        for prompt, samples in generate(actors, prompts, Sampling(n=16), settings):
            ...
"""

from __future__ import annotations

import argparse
import contextlib
import os
import textwrap
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from openrlhf_ebpo.chat_template import Kwargs
from openrlhf_ebpo.engines.cluster import ray_with
from openrlhf_ebpo.errors import UsageError, without_traceback
from openrlhf_ebpo.extension import models_trusted
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
from openrlhf_ebpo.upstream.check import check_release
from openrlhf_ebpo.upstream.engine_errors import LOAD_SECONDS, EngineError, is_engine_death, read_cause
from openrlhf_ebpo.upstream.install import all_seams, install
from openrlhf_ebpo.upstream.rendering import (
    Prompt,
    TokenizerByReference,
    announce_special_tokens,
    prompt_lengths,
    tokenizer_of,
)
from openrlhf_ebpo.upstream.stack import is_cpu_stack
from openrlhf_ebpo.upstream.tokenizer_fit import Flags, Prompting, fit_warnings

# Twice vLLM's largest default of max_num_seqs, so that its batch stays full as sequences end. Queued ones cost nothing.
SEQUENCES_IN_FLIGHT = 2048
MINUTE = 60.0
# Workers print into the progress bar: errors, and what a reward function prints, but not 30 warnings per engine.
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the engines.

    max_len: tokens of prompt and response together, as training's --data.max_len; None: not known yet.
    patience: seconds for the next engine to start (None: LOAD_SECONDS), and for the next prompt to be finished (None:
        no limit). While there is a limit, a line a minute says what is waited for.
    template_kwargs: of the chat template, for an agent that renders its own turns.
    """

    model: str
    max_len: int | None = None
    num_engines: int = 1
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    seed: int = 42
    rewards: RewardSettings = field(default_factory=RewardSettings)
    patience: float | None = None
    template_kwargs: Kwargs = ()

    @classmethod
    def from_args(cls, args: argparse.Namespace, model: str, **fields) -> EngineSettings:
        """Read the flags of `add_flags`. fields: the other ones."""
        return cls(model, **{name: getattr(args, f"vllm.{name}") for name in FLAGS}, **fields)

    @property
    def gpus(self) -> int:
        return self.num_engines * self.tensor_parallel_size

    def problems(self) -> list[str]:
        """List the mistakes in the flags."""
        ranges = {
            "num_engines": self.num_engines >= 1,
            "tensor_parallel_size": self.tensor_parallel_size >= 1,
            "gpu_memory_utilization": 0 < self.gpu_memory_utilization <= 1,
        }
        problems = [f"--vllm.{name} {getattr(self, name)} is out of range" for name, fine in ranges.items() if not fine]
        if self.tensor_parallel_size > 1 and is_cpu_stack():
            problems.append(
                "--vllm.tensor_parallel_size: use more engines, --vllm.num_engines (this machine has no CUDA)"
            )
        return problems


FLAGS = ("num_engines", "tensor_parallel_size", "gpu_memory_utilization", "enforce_eager")  # fields of EngineSettings


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add training's flags of rollout engines that mean something without training."""
    add = parser.add_argument_group("engines").add_argument
    add(
        "--vllm.num_engines",
        type=int,
        metavar="N",
        help="copies of the model that share the prompts (default: %(default)s)",
    )
    add("--vllm.tensor_parallel_size", type=int, metavar="N", help="GPUs per copy (default: %(default)s)")
    add(
        "--vllm.gpu_memory_utilization",
        type=float,
        metavar="SHARE",
        help="share of a GPU's memory for vLLM (default: %(default)s)",
    )
    add("--vllm.enforce_eager", action="store_true", help="no CUDA graphs: starts sooner, generates slower")
    parser.set_defaults(**{f"vllm.{name}": getattr(EngineSettings, name) for name in FLAGS})


@dataclass(frozen=True)
class Sampling:
    """n responses per prompt; max_new_tokens None: as many as `max_len` leaves room for. top_k -1: all tokens. stop:
    texts after which a response ends; its tokens are those up to there, the text's own among them."""

    n: int
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int | None = None
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One response.

    tokens: from the first generated one to the last (an agent's observations in between included).
    truncated: it ended because max_new_tokens were used up.
    reward: None without reward function, and where it failed; `error` then says why.
    logs: further numbers of the reward.
    """

    tokens: list[int]
    truncated: bool
    reward: float | None = None
    error: str | None = None
    logs: dict[str, float] = field(default_factory=dict)


def prepare_process() -> None:
    """Put the seams into this process; before torch, vLLM or OpenRLHF are imported.

    Raises:
        SeamError: the installed OpenRLHF is none that the seams are written for.
    """
    warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", QUIET["VLLM_LOGGING_LEVEL"])
    check_release(all_seams())
    install()
    if is_cpu_stack():
        from openrlhf_ebpo.upstream import cpu

        cpu.prepare_driver()


def fit_window(
    settings: EngineSettings, prompts: Sequence[Prompt], max_new_tokens: int, chat: bool, flags: Flags
) -> tuple[EngineSettings, list[str]]:
    """Return the settings with room for the longest prompt and its response, unless they say how much, and warnings of
    what does not go together between model and prompts. flags: of the command, for the warnings."""
    lengths = prompt_lengths(prompts, settings.model)
    settings = replace(settings, max_len=settings.max_len or max(lengths) + max_new_tokens)
    how = Prompting([each.text for each in prompts], lengths, chat, settings.max_len - max_new_tokens)
    return settings, fit_warnings(settings.model, tokenizer_of(settings.model), how, flags)


@contextlib.contextmanager
def started(settings: EngineSettings) -> Iterator[list]:
    """Start the engines, data parallel, each on its own GPUs, with Ray joined or started; at exit all is shut down.

    Raises:
        UsageError: the model cannot read max_len tokens. ClusterError: too few GPUs.
        EngineError: an engine did not start; with the reason.
    """
    _check_window(settings)
    fewer = "ask for fewer with --vllm.num_engines or --vllm.tensor_parallel_size"
    if settings.rewards.sources:
        announce_special_tokens(settings.model)
    began = time.monotonic()
    room = f", room for {settings.max_len:,} tokens" if settings.max_len else ""
    print(f"starting {settings.num_engines} x {settings.model}{room}", flush=True)
    with ray_with(settings.gpus, fewer, environment=QUIET):
        actors = _start(settings)
        print(f"engines are up after {time.monotonic() - began:.0f} s", flush=True)
        yield actors


def _check_window(settings: EngineSettings) -> None:
    """Check `max_len` against the model's context window, which each engine would do after half a minute."""
    from vllm.config import ModelConfig

    try:
        ModelConfig(
            settings.model, max_model_len=settings.max_len, trust_remote_code=models_trusted(), dtype="bfloat16"
        )
    except ValueError as error:
        if "max_model_len" in str(error):  # other errors may be about this node, which need not have a GPU
            raise UsageError(
                f"{settings.model} does not read {settings.max_len} tokens (--data.max_len, eval: --max_model_len; "
                f"without it, the longest prompt and response): {textwrap.shorten(str(error), 600, placeholder=' …')}"
            ) from error


def _start(settings: EngineSettings) -> list:
    import ray
    from openrlhf.trainer.ray import vllm_engine

    actors = vllm_engine.create_vllm_engines(
        settings.num_engines,
        settings.tensor_parallel_size,
        settings.model,
        settings.seed,
        full_determinism=False,
        enable_prefix_caching=True,  # a prompt is read once, not n times
        enforce_eager=settings.enforce_eager or is_cpu_stack(),
        max_model_len=settings.max_len,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        agent_func_path=settings.rewards.agent,
        remote_rm_url=list(settings.rewards.sources) or None,
    )
    starting = [actor.limit_rewards.remote(settings.rewards) for actor in actors]
    try:
        while starting:
            done = _wait(starting, f"the engines of {settings.model}", settings.patience or LOAD_SECONDS)
            ray.get(done)
            starting = [ref for ref in starting if ref not in done]
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"an engine for {settings.model} with room for {settings.max_len} tokens did not start: "
            f"{without_traceback(error)}"
        ) from error
    return actors


def _wait(refs: list, what: str, patience: float | None) -> list:
    """Return the next of the references that are done, or have failed.

    Raises:
        EngineError: none was after `patience` seconds.
    """
    import ray

    started = time.monotonic()
    while not (done := ray.wait(refs, timeout=patience and min(MINUTE, patience))[0]):
        waited = time.monotonic() - started
        if waited >= patience:
            raise EngineError(
                f"{what}: waited for {waited:.0f} s in vain; is this machine, or the Ray cluster, overloaded?"
            )
        print(f"waiting for {what}, since {waited:.0f} s", flush=True)
    return done


def generate(
    actors: list, prompts: Iterable[Prompt], sampling: Sampling, settings: EngineSettings
) -> Iterator[tuple[Prompt, list[Sample]]]:
    """Yield each prompt with its n samples, in the order in which they finish.

    Prompts are read as engines become free. Where a prompt's own processing fails (an agent that raises), its samples
    carry the error.

    Raises:
        EngineError: an engine has died, or none has finished a prompt for too long.
    """
    import ray

    send = _sender(sampling, settings)
    running: dict[ray.ObjectRef, tuple[int, Prompt]] = {}
    source, room, load = iter(prompts), max(SEQUENCES_IN_FLIGHT // sampling.n, 2), [0] * len(actors)  # of an engine
    while True:
        while min(load) < room and (prompt := next(source, None)) is not None:
            index = load.index(min(load))
            load[index] += 1
            running[send(actors[index], prompt)] = index, prompt
        if not running:
            return
        for ref in _wait(list(running), f"answers to {len(running)} prompts", settings.patience):
            index, prompt = running.pop(ref)
            load[index] -= 1
            try:
                samples = [_sample(response) for response in ray.get(ref)]
            except ray.exceptions.RayError as error:
                if is_engine_death(error):
                    raise EngineError(
                        f"generation engine {index} has died: {read_cause(actors[index].death.remote())}"
                    ) from error
                samples = [Sample([], False, error=without_traceback(error))] * sampling.n
            yield prompt, samples


def _sender(sampling: Sampling, settings: EngineSettings):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(  # as upstream's SamplesGenerator. No seed: it would make all n samples the same
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        stop=list(sampling.stop),
        max_tokens=sampling.max_new_tokens,
        min_tokens=1,
        skip_special_tokens=False,
        output_kind=RequestOutputKind.FINAL_ONLY,  # upstream discards partial outputs
        # only an agent, and the search for a stop text, read vLLM's text; all else takes token ids
        detokenize=settings.rewards.agent is not None or bool(sampling.stop),
    )
    tokenizer = TokenizerByReference(settings.model, True, settings.template_kwargs)

    def send(actor, prompt: Prompt):
        return actor.generate_responses.remote(
            prompt=prompt.text,
            label=prompt.label,
            sampling_params=params,
            max_length=settings.max_len,
            hf_tokenizer=tokenizer,
            num_samples=sampling.n,
            measured=False,
        )

    return send


def _sample(response: dict) -> Sample:
    from openrlhf_ebpo.rewards.processes.reward_values import ERROR_KEY, RewardError, finite_number

    ranges = response["action_ranges"]
    tokens = response["observation_tokens"][ranges[0][0] : ranges[-1][1]] if ranges else []
    reward, error = response["reward"], response.get(ERROR_KEY)
    if reward is not None and error is None:
        try:
            reward = float(finite_number(reward, "reward"))  # an agent's has not been validated yet
        except RewardError as found:
            reward, error = None, str(found)
    given, logs = response.get("extra_logs"), {}
    # those of a reward function are checked where it is called; an agent's logs may hold anything: numbers are kept
    for name, value in given.items() if isinstance(given, dict) else ():
        with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):
            logs[str(name)] = float(value)
    return Sample(tokens, bool(response["truncated"]), reward, error, logs)
