"""Prompts in flight through upstream's data loader, samples generator and both of its training loops: wherever a run is
killed, every prompt is trained on once an episode. Only the engines' answers and the training itself are made up."""

import contextlib
import itertools
import pickle
import queue
import random
from collections import Counter
from types import SimpleNamespace

import datasets
import pytest

from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.upstream.controller.in_flight import FINISHED, IN_FLIGHT, PromptsInFlight
from openrlhf_ebpo.upstream.controller.rollouts import prompt_id

ROWS, BATCH, GROUP, EPISODES = 22, 4, 2, 2


class AnsweringEngines:
    """In the place of `ray` in upstream's module: refs are answers, which come back in a random order."""

    def __init__(self):
        self.random = random.Random(0)

    def wait(self, refs, num_returns, timeout):
        refs = list(refs)
        return [refs.pop(self.random.randrange(len(refs)))], refs

    def get(self, ref):
        return ref


def answers(prompt: str, label: str, rename) -> list[dict]:
    """Prompts whose number is divisible by 5 never pass."""
    return [
        {
            "prompt": rename(prompt),
            "label": label,
            "observation_tokens": [1, 2, 3],
            "action_ranges": [(1, 3)],
            "rollout_log_probs": None,
            "scores": float(i == 0 and int(label) % 5 > 0),
            "reward": float(i == 0 and int(label) % 5 > 0),
        }
        for i in range(GROUP)
    ]


@pytest.fixture
def build(prompt_args, monkeypatch):
    """Upstream's samples generator on our data loader: build(vllm_generate_batch_size=12)."""
    from openrlhf.datasets import PromptDataset
    from openrlhf.trainer.ppo_utils import samples_generator
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

    monkeypatch.setattr(samples_generator, "ray", AnsweringEngines())
    defaults = {
        "train.num_episodes": EPISODES,
        "rollout.vllm_generate_batch_size": BATCH,
        "algo.dynamic_filtering_range": (0, 1),
        "eval.steps": float("inf"),
    }

    def build(rows=None, num_workers=0, rename=lambda prompt: prompt, **changes):
        strategy = DeepspeedStrategy.__new__(DeepspeedStrategy)
        strategy.args, strategy.is_rank_0 = prompt_args(BATCH, GROUP, **{**defaults, **changes}), lambda: False
        rows = rows or [{"q": f"prompt {i}", "a": str(i)} for i in range(ROWS)]
        prompts = PromptDataset(datasets.Dataset.from_list(rows), SimpleNamespace(), strategy)
        loader = strategy.setup_dataloader(prompts, 1, False, True, prompts.collate_fn, num_workers=num_workers)
        generator = samples_generator.SamplesGenerator(strategy, loader, None, None, [])
        generator._dispatch_prompts_to_vllm = lambda prompts, labels, **_: [
            answers(p, label, rename) for p, label in zip(prompts, labels, strict=True)
        ]
        return generator

    return build


class Killed(Exception):
    pass


def train(mode: str, generator, states: dict | None = None, steps: int | None = None) -> tuple[list, list]:
    """Train, from a checkpoint's states, for so many steps: what each step trained on, as (episode, labels), and the
    checkpoint after it."""
    trained, saved = [], []

    def step(samples, client_states):
        if steps is not None and len(trained) == steps:
            raise Killed
        trained.append((client_states["episode"], [sample.labels[0] for sample in samples[::GROUP]]))
        saved.append(pickle.dumps(client_states))

    loop = {"sync": sync_loop, "async": async_loop}[mode]
    start = pickle.loads(states) if states else {"episode": 0, "total_consumed_prompts": 0}
    with contextlib.suppress(Killed):
        loop(generator, start, step)
    return trained, saved


def sync_loop(generator, start: dict, step) -> None:
    """PPOTrainer.fit, of which only training, weights and files are left out."""
    from openrlhf.trainer.ppo_trainer import PPOTrainer

    trainer = object.__new__(PPOTrainer.actor_class.__ray_metadata__.modified_class)
    trainer.args, trainer.samples_generator = generator.args, generator
    trainer.prompts_dataloader, trainer.eval_dataloader = generator.prompts_dataloader, None
    trainer.generate_kwargs, trainer.wandb_logger, trainer.tensorboard_logger = {"max_len": 8}, None, None
    states = {"data_loader_state_dict": {}, **start, "global_step": 1 if "data_loader_state_dict" in start else 0}
    trainer.init_checkpoint_states = lambda: states
    trainer.restore_best_checkpoint_state = lambda states: None
    trainer.broadcast_to_vllm = lambda: None
    batches = []

    def train_step(samples, global_step):
        batches.append(samples)
        return {}, global_step + 1

    trainer.train_step = train_step
    trainer.save_logs_and_checkpoints = lambda global_step, status, states: step(batches[-1], states)
    fit = next(c.__dict__["fit"] for c in type(trainer).__mro__ if c.__module__ == "openrlhf.trainer.ppo_trainer")
    fit(trainer)


class Payloads:
    """The queue of batches: pickled as Ray does, so that later changes do not reach them."""

    def __init__(self, step):
        self.step = step

    def put(self, payload, block=True):
        if payload != "done":
            samples, client_states, *_ = payload
            self.step(samples, pickle.loads(pickle.dumps(client_states)))


def async_loop(generator, start: dict, step) -> None:
    """GenerateSamplesActor.fit, in partial rollout mode, in which it needs no lock."""
    from openrlhf.trainer.ppo_trainer_async import GenerateSamplesActor

    actor = object.__new__(GenerateSamplesActor.__ray_metadata__.modified_class)
    actor.args, actor.samples_generator, actor.generate_kwargs = generator.args, generator, {"max_len": 8}
    actor.prompts_dataloader, actor.eval_dataloader = generator.prompts_dataloader, None
    actor._partial_rollout, actor._eval_just_done = True, False
    actor.rollout_slots, actor.rollout_queue = queue.Queue(), Payloads(step)
    for _ in range(1000):
        actor.rollout_slots.put(0)
    if "data_loader_state_dict" in start:
        actor.load_state_dict(start["data_loader_state_dict"])
    actor.fit(start["episode"], start["total_consumed_prompts"])


def by_episode(trained: list) -> list[list[str]]:
    return [sorted((label for e, labels in trained for label in labels if e == episode), key=int) for episode in (0, 1)]


FILTERED = {"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": (0.1, 0.9)}
KINDS = {
    "a batch at a time": {},
    "over-sampled": {"rollout.vllm_generate_batch_size": 10},
    "two and a half batches that divide the data": {"rollout.vllm_generate_batch_size": 11},
    "a whole episode at a time": {"rollout.vllm_generate_batch_size": 30},
    "filtered": FILTERED,
    "over-sampled and filtered": {**FILTERED, "rollout.vllm_generate_batch_size": 10},
    "in order, over-sampled and filtered": {**FILTERED, "rollout.vllm_generate_batch_size": 10, "data.order": "as_is"},
}


def wanted(changes: dict) -> list[list[str]]:
    """Every prompt once an episode, but for those that the filter drops."""
    labels = [str(i) for i in range(ROWS) if i % 5 or not changes.get("algo.dynamic_filtering_enable")]
    return [labels] * EPISODES


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
def test_wherever_a_run_is_killed_every_prompt_is_trained_on_once_an_episode(build, mode, kind):
    trained, saved = train(mode, build(**KINDS[kind]))
    assert by_episode(trained) == wanted(KINDS[kind])
    assert len(trained) >= 2 * len(wanted(KINDS[kind])[0]) // BATCH
    for steps in range(1, len(trained) + 1):
        rest, _ = train(mode, build(**KINDS[kind]), saved[steps - 1])
        assert by_episode(trained[:steps] + rest) == wanted(KINDS[kind]), f"killed after step {steps}"


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_killed_after_every_step_loses_nothing(build, mode, kind):
    trained, states = [], None
    for _ in itertools.repeat(None, 40):
        step, saved = train(mode, build(**KINDS[kind]), states, steps=1)
        if not step:
            break
        trained, states = trained + step, saved[0]
    assert by_episode(trained) == wanted(KINDS[kind])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", ["shuffle", "as_is"])
def test_without_anything_in_flight_a_resumed_run_has_the_same_steps(build, order, num_workers):
    """Over the end of an episode too, whose next one has its own order."""
    changes = {"data.order": order, "num_workers": num_workers}
    trained, saved = train("async", build(**changes))
    assert [len(labels) for _, labels in trained][:5] == [BATCH] * 5
    assert order == "as_is" or trained[0][1] != trained[len(trained) // 2][1]
    for steps in (2, 5, 6, 8):
        rest, _ = train("async", build(**changes), saved[steps - 1])
        assert unordered(rest) == unordered(trained[steps:])


def unordered(trained: list) -> list:
    return [(episode, sorted(labels)) for episode, labels in trained]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_second_kill_before_the_prompts_in_flight_are_drawn_again(build, num_workers):
    over_sampled = {"rollout.vllm_generate_batch_size": 14, "num_workers": num_workers}
    trained, saved = train("async", build(**over_sampled), steps=1)
    states = pickle.loads(saved[0])
    in_flight = states["data_loader_state_dict"][IN_FLIGHT].tolist()
    assert len(in_flight) == 10
    again = build(num_workers=num_workers)  # and now a batch at a time
    again.prompts_dataloader.load_state_dict(states["data_loader_state_dict"])
    assert again.prompts_dataloader.state_dict()[IN_FLIGHT].tolist() == in_flight
    step, saved_again = train("async", build(num_workers=num_workers), saved[0], steps=1)
    left = pickle.loads(saved_again[0])["data_loader_state_dict"][IN_FLIGHT].tolist()
    assert left == in_flight[BATCH:]
    rest, _ = train("async", build(num_workers=num_workers), saved_again[0])
    assert by_episode(trained + step + rest) == wanted({})


def test_prompts_in_flight_stay_in_the_order_in_which_they_were_drawn():
    """Of equal rows the last that was drawn still waits."""
    data = SimpleNamespace(prompts=["a", "b", "a", "c"], labels=["1"] * 4)
    flight = PromptsInFlight(SimpleNamespace(dataset=SimpleNamespace(dataset=data)))
    flight._drawn = [3, 0, 1, 2]
    assert not flight.keep(Counter([prompt_id("a", "1"), prompt_id("c", "1")])) and flight._drawn == [3, 2]


def test_rows_with_the_same_prompt_and_label_are_told_apart_by_their_number(build):
    rows = [{"q": f"prompt {i % 3}", "a": str(i % 3 + 1)} for i in range(12)]
    changes = {"rows": rows, "rollout.vllm_generate_batch_size": 7}
    trained, saved = train("async", build(**changes))
    for steps in range(1, len(trained) + 1):
        rest, _ = train("async", build(**changes), saved[steps - 1])
        for episode in by_episode(trained[:steps] + rest):
            assert Counter(episode) == {"1": 4, "2": 4, "3": 4}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_of_upstreams_loader_is_taken(build, num_workers):
    """As OpenRLHF alone saves it; and upstream's loader takes one of ours."""
    trained, saved = train("async", build(num_workers=num_workers))
    states = pickle.loads(saved[1])
    loader_state = states["data_loader_state_dict"]
    assert loader_state.pop(IN_FLIGHT).tolist() == []
    assert FINISHED in loader_state
    rest, _ = train("async", build(num_workers=num_workers), pickle.dumps(states))
    assert unordered(rest) == unordered(trained[2:])
    upstreams = build(num_workers=num_workers).prompts_dataloader.loader
    upstreams.load_state_dict(pickle.loads(saved[1])["data_loader_state_dict"])
    assert len(list(upstreams)) == ROWS - 2 * BATCH


def test_an_agent_that_changes_its_prompts_is_told_what_a_resume_leaves_out(build, caplog):
    generator = build(rename=lambda prompt: f"{prompt}!", **KINDS["over-sampled"])
    trained, _ = train("async", generator)
    assert by_episode(trained) == wanted({}) and "6 prompts" in caplog.text


def test_evaluation_and_other_loaders_are_upstreams_own(build):
    generator = build()
    strategy, prompts = generator.strategy, generator.prompts_dataloader.dataset
    assert isinstance(generator.prompts_dataloader, PromptsInFlight)
    evaluation = strategy.setup_dataloader(prompts, 1, False, False, prompts.collate_fn)
    assert type(evaluation).__name__ == "StatefulDataLoader"


@pytest.mark.parametrize("train_batch", [2, 4, 6, 8])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_pass_has_as_many_steps_as_are_reckoned_from_the_data_file(mode, train_batch, build):
    """22 prompts, 4 a batch: the last 2 prompts are a step where their 4 responses fill an optimizer step of all
    GPUs."""
    generator = build(**{"actor.num_gpus_per_node": 2, "train.batch_size": train_batch})
    trained, _ = train(mode, generator)
    expected = BatchSettings(BATCH, GROUP, train_batch, ranks=2).steps_a_pass(ROWS)
    assert [sum(e == episode for e, _ in trained) for episode in range(EPISODES)] == [expected] * EPISODES
    assert expected == (6 if train_batch in (2, 4) else 5)
