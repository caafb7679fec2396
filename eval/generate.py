"""Responses to all questions that have none yet, in one pass over all tasks: by vLLM."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from openrlhf_ebpo.data.difficulty_report import ProgressBar
from openrlhf_ebpo.engines import engines
from openrlhf_ebpo.engines.engines import EngineSettings, Sample, Sampling
from openrlhf_ebpo.rewards.math.extraction import THOUGHT_TAG
from openrlhf_ebpo.upstream.engine_errors import EngineError
from openrlhf_ebpo.upstream.rendering import Prompt, text_tokenizer, tokenizer_of
from openrlhf_ebpo.upstream.tokenizer_fit import EVALUATION

from . import prompts
from .jobs import Job
from .prompts import PromptForm
from .protocols import Protocol

SAMPLING = ("n", "temperature", "top_p", "max_new_tokens", "top_k", "min_p", "stop")  # fields of Protocol and Sampling


def respond(jobs: Sequence[Job], model: str, form: PromptForm, protocol: Protocol, engine: EngineSettings) -> None:
    """Generate what is missing. Every question goes into its job, and so to disk, as soon as it has all its responses.

    model: folder or Hub name, not an adapter. engine: settings of the hardware.

    Raises:
        UsageError: the model cannot read prompts as long as these. ReportedError: they cannot be written.
        ClusterError, EngineError: too few GPUs, an engine died, or a question cannot be answered.
    """
    engines.prepare_process()
    requested = {key: pair for job in jobs for key, pair in _prompts(job, form, model).items()}
    if not requested:
        return
    total, done = sum(len(job.task.questions) for job in jobs), sum(len(job.records) for job in jobs)
    todo = [prompt for _, prompt in requested.values()]
    # another seed for a resumed pass, which must not repeat the random numbers of the one before
    engine = dataclasses.replace(engine, model=model, max_len=protocol.max_model_len, seed=protocol.seed + done)
    settings, warnings = engines.fit_window(engine, todo, protocol.max_new_tokens, form.chat_template, EVALUATION)
    for warning in warnings:
        print(warning, flush=True)
    sampling, failed = Sampling(**{name: getattr(protocol, name) for name in SAMPLING}), {}
    with engines.started(settings) as actors, ProgressBar(total, done) as bar:
        for prompt, samples in engines.generate(actors, todo, sampling, settings):
            if error := next((sample.error for sample in samples if sample.error), None):
                failed[prompt.key] = error
                continue
            record = to_record(samples, model, settings.seed, protocol.stop, prompt.text)
            requested[prompt.key][0].add(prompt.key.partition("/")[2], record)
            bar.update(record)
    if failed:
        key, error = next(iter(failed.items()))
        raise EngineError(f"{len(failed)} questions got no responses, such as {key}: {error}")


def _prompts(job: Job, form: PromptForm, model: str) -> dict[str, tuple[Job, Prompt]]:
    """Render the missing questions, by task/question: one question may be in two tasks."""
    rendered = prompts.render_questions(job.missing, form, model)
    keyed = (dataclasses.replace(prompt, key=f"{job.task.name}/{prompt.key}") for prompt in rendered)
    return {prompt.key: (job, prompt) for prompt in keyed}


def to_record(samples: Sequence[Sample], model: str, seed: int, stop: Sequence[str] = (), prompt: str = "") -> dict:
    """Return a question's record in the progress file; response i is the i-th run's. prompt: as the model gets it."""
    tokenizer, skipped = tokenizer_of(model), _skipped_tokens(model)

    def decode(tokens: Sequence[int]) -> str:
        return tokenizer.decode([each for each in tokens if each not in skipped], skip_special_tokens=False)

    return {
        "prompt": prompt,
        "responses": [text_before_stop(stop, decode, sample.tokens) for sample in samples],
        "lengths": [len(sample.tokens) for sample in samples],
        "finish_reasons": ["length" if sample.truncated else "stop" for sample in samples],
        "seed": seed,
    }


@functools.cache
def _skipped_tokens(model: str) -> frozenset[int]:
    """Return the special tokens but those that enclose thoughts: without them, thoughts would be answers."""
    tokenizer = text_tokenizer(tokenizer_of(model))
    known = tokenizer.added_tokens_decoder.items()
    special = {*tokenizer.all_special_ids, *(number for number, token in known if token.special)}
    return frozenset(special - {number for number, token in known if THOUGHT_TAG.fullmatch(token.content)})


def text_before_stop(stop: Sequence[str], decode: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> str:
    """Return the text of the tokens up to the stop text that ended it. vLLM does not look for one in the first
    token."""
    text = decode(tokens)
    first = len(decode(tokens[:1])) if stop else 0
    ends = [text.find(each, max(0, first - len(each) + 1)) for each in stop]
    return text[: min((end for end in ends if end >= 0), default=len(text))]
