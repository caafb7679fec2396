"""`train --dry_run --sample`: the model's answers to the first prompts, by the engine and the reward of the run."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from openrlhf_ebpo.chat_template import parse_kwargs
from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.engines import engines
from openrlhf_ebpo.engines.engines import EngineSettings, Sample, Sampling
from openrlhf_ebpo.rewards.processes.reward_values import NO_ANSWER
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
from openrlhf_ebpo.upstream.rendering import Prompt, tokenizer_of

DEFAULT_PROMPTS = 4  # with an answer each
MAX_CHARS = 240  # of a prompt or an answer
MAX_WAIT_SECONDS = 1800.0  # for the engine's start, and for the next answer


def add_flag(group) -> None:
    group.add_argument(
        "--sample",
        type=int,
        nargs="?",
        const=DEFAULT_PROMPTS,
        metavar="N",
        help=f"with --dry_run: generate answers to the first N prompts ({DEFAULT_PROMPTS}) with vLLM, grade them with "
        "the run's reward and show them",
    )


def engine_settings(args, rewards: RewardSettings) -> EngineSettings:
    """Return the settings of an engine as those of the run, without what pays off only in a long one."""
    return EngineSettings(
        model=args.actor.model_name_or_path,
        max_len=args.data.max_len,
        tensor_parallel_size=args.vllm.tensor_parallel_size,
        gpu_memory_utilization=args.vllm.gpu_memory_utilization,
        enforce_eager=True,
        seed=args.train.seed,
        rewards=rewards,
        patience=MAX_WAIT_SECONDS,
        template_kwargs=parse_kwargs(args.data.template_kwargs),
    )


def sample(args, rewards: RewardSettings, prompts: Sequence[Prompt]) -> Iterator[str]:
    """Answer the prompts, and grade the answers; yields lines as they come. args: upstream's, nested.

    Raises:
        UsageError: model and flags do not go together. ClusterError, EngineError: too few GPUs; the engine did not
            start, or answers did not come.
    """
    engines.prepare_process()
    engine, answers = engine_settings(args, rewards), []
    sampling = Sampling(1, args.rollout.temperature, args.rollout.top_p, args.rollout.max_new_tokens)
    yield f"sample: answers to the first {len(prompts)} prompts"
    with engines.started(engine) as actors:
        found = engines.generate(actors, prompts, sampling, engine)
        for prompt, samples in in_order(found, [prompt.key for prompt in prompts]):
            answers += samples
            yield from answer_lines(prompt, samples[0], tokenizer_of(engine.model))
    yield from verdict(answers, args)


def in_order(found: Iterable[tuple[Prompt, list[Sample]]], keys: Sequence) -> Iterator[tuple[Prompt, list[Sample]]]:
    """Yield prompts and their answers in the order of their keys, each as soon as all before it are there."""
    waiting, following = {}, iter(keys)
    key = next(following, None)
    for prompt, samples in found:
        waiting[prompt.key] = prompt, samples
        while key in waiting:
            yield waiting.pop(key)
            key = next(following, None)


def answer_lines(prompt: Prompt, answer: Sample, tokenizer) -> list[str]:
    """A prompt and its answer, a line each: both are untrusted text, for a terminal."""
    text = tokenizer.decode(answer.tokens, skip_special_tokens=False)
    facts = [f"{len(answer.tokens)} tokens"]
    facts += ["cut"] if answer.truncated else []
    facts += [f"reward {answer.reward:g}"] if answer.reward is not None else []
    facts += [f"no reward: {one_line(answer.error, MAX_CHARS)}"] if answer.error else []
    return [
        f"prompt {prompt.key}  {one_line(prompt.text, MAX_CHARS)}",
        f"  answer  {one_line(text, MAX_CHARS)}",
        f"  ({', '.join(facts)})",
    ]


def verdict(samples: Sequence[Sample], args) -> list[str]:
    """Summarise the answers, with a remedy if the reward reads none or failed."""
    count, limit = len(samples), args.rollout.max_new_tokens
    cut_at = f"{limit} tokens" if limit else f"--data.max_len {args.data.max_len}"
    rewards = [each.reward for each in samples if each.reward is not None]
    failed = Counter(each.error for each in samples if each.error)
    passed = sum(reward >= args.algo.advantage.ebpo.pass_reward for reward in rewards)
    logs = [(name, value) for each in samples for name, value in each.logs.items()]
    read = [value == 0 for name, value in logs if name.endswith(NO_ANSWER)]
    facts = [f"{sum(read)} of {count} have an answer that the reward reads"] if read else []
    if rewards:
        facts += [f"{passed} of {count} pass, mean reward {statistics.fmean(rewards):g}"]
    if failed:
        facts += [f"{failed.total()} of {count} got no reward"]
    facts += [] if rewards or failed else ["not graded: the run's reward is a model"]
    lines = [f"sample: {'; '.join([*facts, f'{sum(each.truncated for each in samples)} of {count} cut at {cut_at}'])}"]
    names = sorted({name for name, _ in logs if not name.endswith(NO_ANSWER)})
    means = {name: statistics.fmean(value for logged, value in logs if logged == name) for name in names}
    if means:
        measures = ", ".join(f"{one_line(name, MAX_CHARS)} {mean:.3g}" for name, mean in means.items())
        lines.append(f"the reward's own measures, on average: {measures}")
    if failed:
        lines.append(f"warning: no reward, most often: {one_line(failed.most_common(1)[0][0], 2 * MAX_CHARS)}")
    if read and not any(read):
        lines.append(
            "warning: no answer is in the form that the reward reads. Ask for it in the prompt, use the chat template "
            "of an instruct model (--data.apply_chat_template), or warm-start the model on answers of that form "
            "(openrlhf-ebpo sft)"
        )
    return lines
