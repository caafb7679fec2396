"""Time and GPUs for the paper's table, estimated: python research/gpu_hours.py [--length 5000] [--mfu 0.3] ...

Nothing here was measured. A step is generation, limited by memory traffic, then passes over all tokens, limited by
arithmetic, then a fixed rest:

  generation  every decoding iteration reads the weights once and the cache of all running sequences. An engine runs for
               as many iterations as the longest response has tokens; longer where not all sequences fit at once.
  training     2 floating-point operations a weight and token forward, 4 backward, 2 to recompute activations; one more
               forward pass for the old log-probabilities, and one for the reference model if there is a KL term.
  rest         weights to vLLM, waking and sleeping, rewards, the run log
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from lab.markdown_tables import table
from openrlhf_ebpo.command import command
from openrlhf_ebpo.eval.paper import REPORTED
from openrlhf_ebpo.eval.tasks import BENCHMARKS
from openrlhf_ebpo.run.batches import BatchSettings

QUESTIONS = 16_900  # DAPO-Math-17K less those held out
PROMPTS, MINI_BATCH = 512, 128  # of a step, of an optimizer step
PASS = BatchSettings(PROMPTS, 4, MINI_BATCH * 4, ranks=8).steps_a_pass(QUESTIONS)  # 33, with every G
MAX_TOKENS, MAX_EVALUATION_TOKENS = 8192, 20480
VALIDATION, SAMPLES = 500, 16  # prompts, and responses to each, of an evaluation
BENCHMARK_RESPONSES = 32 * sum(BENCHMARKS[task].rows[0] for task in REPORTED["Qwen3-8B", 4]["GRPO"])
DIFFICULTY_RESPONSES = 16 * QUESTIONS


@dataclass(frozen=True)
class Model:
    name: str
    parameters: float
    cache: int  # bytes of keys and values per token
    engine_80gb: int = 1  # GPUs a vLLM engine, on 80 GB


@dataclass(frozen=True)
class Machine:
    name: str
    gpus: int
    memory: float  # bytes per GPU
    bandwidth: float  # bytes/s, data sheet
    flops: float  # bfloat16 without sparsity, data sheet
    share: float  # of memory, for vLLM


@dataclass(frozen=True)
class Method:
    name: str
    forwards: int  # passes without gradient: old log-probabilities, reference
    steps: int = 30 * PASS
    generated: float = 1.0  # responses generated for one that is trained on
    every: int = 50  # steps from one evaluation to the next


MODELS = {
    "qwen3_8b": Model("Qwen3-8B", 8.19e9, 147456),
    "qwen3_14b": Model("Qwen3-14B", 14.77e9, 163840, engine_80gb=2),
    "llama3_1_8b": Model("Llama-3.1-8B", 8.03e9, 131072),
}
MACHINES = (
    Machine("32 x H200", 32, 141e9, 4.8e12, 989e12, 0.7),
    Machine("8 x H200", 8, 141e9, 4.8e12, 989e12, 0.7),
    Machine("8 x H100", 8, 80e9, 3.35e12, 989e12, 0.65),
)
METHODS = (
    Method("all others", 2),
    Method("Clip-Cov, KL-Cov: no reference model", 1),
    Method("DAPO: the same, half of the groups filtered out", 1, generated=2.0),
    Method("`--order difficulty`: one pass", 2, steps=PASS, every=10),
)
ASSUMED = {
    "length": (5000, "mean response length in tokens, of at most 8,192"),
    "evaluation_length": (8000, "the same on the benchmarks, of at most 20,480"),
    "prompt": (200, "mean prompt length in tokens"),
    "mfu": (0.3, "share of the data sheet's arithmetic that training reaches"),
    "bandwidth_share": (0.6, "share of the data sheet's memory bandwidth that decoding reaches"),
    "rest": (40, "seconds per step for all else"),
}


def generation(
    model: Model, machine: Machine, responses: float, assumed, length=None, longest: int = MAX_TOKENS
) -> float:
    """Seconds to generate `responses` of the mean length on all GPUs."""
    length = length or assumed.length
    split = model.engine_80gb if machine.memory < 100e9 else 1
    weights = 2 * model.parameters / split
    cache = model.cache / split
    sequences = responses * split / machine.gpus  # an engine's
    at_once = (machine.share * machine.memory - weights) / cache / (assumed.prompt + length)
    iterations = max(longest, sequences * length / at_once)
    read = sequences * length * (assumed.prompt + length / 2) * cache
    return (iterations * weights + read) / (machine.bandwidth * assumed.bandwidth_share)


def step(model: Model, machine: Machine, method: Method, group: int, assumed) -> float:
    """Seconds of one training step, its share of the evaluations included."""
    responses = PROMPTS * group
    tokens = responses * (assumed.prompt + assumed.length)
    arithmetic = (8 + 2 * method.forwards) * model.parameters * tokens
    training = arithmetic / (machine.gpus * machine.flops * assumed.mfu)
    evaluation = generation(model, machine, VALIDATION * SAMPLES, assumed) / method.every
    return generation(model, machine, responses * method.generated, assumed) + training + evaluation + assumed.rest


def trainings(assumed) -> list[list[str]]:
    cases = [(model, 4, method) for model in MODELS.values() for method in METHODS]
    cases += [(MODELS["qwen3_8b"], group, METHODS[0]) for group in (8, 16, 32)]
    rows = []
    for model, group, method in cases:
        seconds = [step(model, machine, method, group, assumed) for machine in MACHINES]
        hours = [each * method.steps / 3600 for each in seconds]
        row = [model.name, str(group), method.name, str(method.steps), f"{seconds[0]:.0f} s"]
        rows.append([*row, *(f"{each:.0f} h" for each in hours), f"{hours[0] * MACHINES[0].gpus:,.0f}"])
    return rows


def once(assumed) -> list[list[str]]:
    """The work done once per model."""
    longer = (assumed.evaluation_length, MAX_EVALUATION_TOKENS)
    work = {"measuring difficulty": (DIFFICULTY_RESPONSES,), "five benchmarks x 32": (BENCHMARK_RESPONSES, *longer)}
    rows = []
    for model in MODELS.values():
        for name, (responses, *lengths) in work.items():
            hours = [generation(model, machine, responses, assumed, *lengths) / 3600 for machine in MACHINES]
            rows.append([name, model.name, *(f"{each:.1f} h" for each in hours)])
    return rows


def add_flags(parser: argparse.ArgumentParser) -> None:
    for name, (default, text) in ASSUMED.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} (%(default)s)")


def run(assumed: argparse.Namespace) -> None:
    machines = tuple(machine.name for machine in MACHINES)
    print("assumed: " + ", ".join(f"{name} {value}" for name, value in vars(assumed).items()) + "\n")
    columns = ("model", "G", "method", "steps", f"a step, {machines[0]}", *machines, f"GPU hours, {machines[0]}")
    print(table(columns, trainings(assumed)) + "\n")
    print(table(("once", "model", *machines), once(assumed)))


main = command("python research/gpu_hours.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
