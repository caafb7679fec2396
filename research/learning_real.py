"""Estimators compared by what a model learns in OpenRLHF: Ray, DeepSpeed, vLLM; synchronous and asynchronous.

The quickstart's model and task, G = 2: two to three minutes a training on two cores. Every seed has its own order of
prompts and its own sampling. All estimators of a seed begin with the same model and are given the same prompts in the
same order; success is that on held-out tasks after the last step. EBPO's presets follow its name (ebpo.robust).

    python research/learning_real.py --output runs/learning_real             train what is not there yet
    python research/learning_real.py --sampling queue-4 --seeds 1 2 3 --output runs/learning_real       asynchronous
    python research/learning_real.py --table --output runs/learning_real     tables, in Markdown, of existing results
    python research/learning_real.py --table --output docs/results/learning_real.json    the same of what --export wrote

Asynchronous tables also say how many steps older than the trainer's the weights were that finished a sample, on
average: a queue of four batches fills only where generation is the faster part. An interrupted call resumes where it
stopped.
"""

from __future__ import annotations

import argparse

from lab import final_success
from lab.cells import parsed
from lab.learner import TOKEN_BASELINE, build
from lab.real import SAMPLINGS, RealLearning
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.quickstart.stages import STEPS

ESTIMATORS = ["group_norm", "ebpo", "ebpo.robust", "raw_reward"]
DEFAULT_STEPS = 60


def add_flags(parser: argparse.ArgumentParser) -> None:
    final_success.add_flags(parser, "runs/learning_real", seeds=6)
    add = parser.add_argument
    add("--estimators", nargs="+", metavar="NAME", default=ESTIMATORS, help=f"default: {' '.join(ESTIMATORS)}")
    add("--sampling", nargs="+", choices=[*SAMPLINGS], default=["sync"], metavar="NAME", help=", ".join(SAMPLINGS))
    add("--steps", type=int, default=DEFAULT_STEPS, help=f"{DEFAULT_STEPS}; at most {STEPS}")


def run(options: argparse.Namespace) -> None:
    final_success.run(options, jobs_of(options))


def jobs_of(options: argparse.Namespace) -> list[RealLearning]:
    """
    Raises:
        UsageError: a flag cannot be followed.
    """
    names = list(dict.fromkeys(options.estimators))
    for name in names:
        build(name, 2)
        if name == TOKEN_BASELINE or parsed(name)[1]:
            raise UsageError(
                f"--estimators {name}: give a name, MODULE:NAME, or ebpo.PRESET; the rest is for learning.py alone"
            )
    if not 1 <= options.steps <= STEPS:
        raise UsageError(f"--steps {options.steps}: the quickstart's tasks are enough for 1 to {STEPS}")
    return [RealLearning(name, options.steps, sampling) for sampling in options.sampling for name in names]


main = command("python research/learning_real.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
