"""Order and clusters of the prompts, through upstream's data set, its data loader and its samples."""

from collections import Counter
from types import SimpleNamespace

import datasets
import pytest
from replay_runs import G, M, arguments, trainer

from openrlhf_ebpo.upstream.controller.prompts import INFO_KEY

ROWS = 20


@pytest.fixture
def loader(sections):
    """The data loader that train_ppo_ray makes for its prompts: loader("as_is", num_workers=0)."""
    from openrlhf.datasets import PromptDataset
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

    def build(order: str, num_workers: int = 0, cluster_key=None, column="cluster", seed=42):
        strategy = DeepspeedStrategy.__new__(DeepspeedStrategy)
        names = {"order": order, "cluster_key": cluster_key, "input_key": "q", "label_key": "a", "image_key": "images"}
        data = SimpleNamespace(**names, apply_chat_template=False)
        strategy.args = SimpleNamespace(data=data, train=SimpleNamespace(seed=seed))
        strategy.is_rank_0 = lambda: False
        rows = [{"q": f"prompt {i}", "a": str(i), column: None if i == 3 else i % 2} for i in range(ROWS)]
        prompts = PromptDataset(datasets.Dataset.from_list(rows), SimpleNamespace(), strategy)
        return strategy.setup_dataloader(prompts, 1, False, True, prompts.collate_fn, num_workers=num_workers)

    return build


def drawn(iterator, count: int = ROWS) -> list[str]:
    from openrlhf.trainer.ppo_utils.samples_generator import _collect_prompt_batch

    return _collect_prompt_batch(iterator, count)[1]


def trained(loader) -> dict:
    """The state of a data loader all of whose prompts were given to the trainer."""
    assert not loader.keep(Counter())
    return loader.state_dict()


def test_rows_without_a_data_source_are_of_the_default_one(loader):
    """Of two files one has the column: datasets fills it with None in the other's rows."""
    sources = loader("as_is", column="datasource").dataset.datasources
    assert sources[:5] == ["0", "1", "0", "default", "0"]


def test_as_is_keeps_the_order_and_shuffle_does_not(loader):
    in_order = [str(i) for i in range(ROWS)]
    assert drawn(iter(loader("as_is"))) == in_order
    shuffled = drawn(iter(loader("shuffle")))
    assert shuffled != in_order and sorted(shuffled, key=int) == in_order


def test_shuffle_follows_the_seed_into_the_next_episode(loader):
    """Upstream's own does not, where no process group is."""
    orders = {}
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        prompts = loader("shuffle", seed=seed)
        orders[name] = [drawn(iter(prompts)) for _ in range(2)]
    assert orders["one"] == orders["same"] != orders["other"]
    assert orders["one"][0] != orders["one"][1], "episodes differ"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_shuffle_goes_on_in_its_order(loader, num_workers):
    whole = drawn(iter(loader("shuffle", num_workers, seed=3)))
    before, after = loader("shuffle", num_workers, seed=3), loader("shuffle", num_workers, seed=4)
    assert drawn(iter(before), 8) == whole[:8]
    after.load_state_dict(trained(before))
    assert drawn(iter(after)) == whole[8:]


@pytest.mark.parametrize("order", ["as_is", "shuffle"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_episode_that_ended_with_a_batch_that_is_not_full_is_not_repeated(loader, order, num_workers):
    before = loader(order, num_workers)
    iterator = iter(before)
    assert [len(drawn(iterator, 8)) for _ in range(3)] == [8, 8, 4]
    state, next_episode = trained(before), drawn(iter(before))
    upstreams = loader(order, num_workers).loader
    upstreams.load_state_dict(state)
    assert len(list(upstreams)) == ROWS, "torchdata no longer starts again: PromptsInFlight._ended can go"
    after = loader(order, num_workers)
    after.load_state_dict(state)
    assert drawn(iter(after)) == []  # and upstream continues with the next episode
    assert drawn(iter(after)) == next_episode and len(next_episode) == ROWS


def test_clusters_are_text_or_nothing(loader):
    expected = [None if i == 3 else str(i % 2) for i in range(ROWS)]
    assert loader("shuffle").dataset.clusters == expected
    assert loader("shuffle", cluster_key="topic", column="topic").dataset.clusters == expected
    assert loader("shuffle", column="topic").dataset.clusters == [None] * ROWS


@pytest.mark.parametrize("estimator", ["ebpo", "rloo"])
def test_a_sample_knows_the_cluster_of_its_prompt_until_the_estimator_has_read_it(
    rollout_args, answers, to_samples, make_maker, patched_class, estimator
):
    args = rollout_args(estimator, G=2)
    responses = answers([1.0, 0.0, 0.0, 1.0]).responses()
    for i, response in enumerate(responses):
        response.update(prompt=f"prompt {i // 2}", label=str(i // 2))
    samples = to_samples(responses, args)
    assert [sample.info[INFO_KEY] for sample in samples] == [[None], [None], ["algebra"], ["algebra"]]
    maker = make_maker(patched_class, args)
    maker.make_experience_batch(samples)
    assert maker.rollouts.clusters == [None, None, "algebra", "algebra"]


@pytest.mark.parametrize(
    ("responses", "changes", "kept"),
    [
        (64, {}, 64),
        (44, {}, 32),  # what fills no optimizer step is left out
        (28, {}, 0),
        (44, {"actor.num_nodes": 1, "actor.num_gpus_per_node": 1}, 44),  # one rank: upstream carries it on
        (44, {"actor.num_nodes": 1, "actor.num_gpus_per_node": 1, "train.dynamic_batch_enable": True}, 32),
        (64, {"train.batch_size": 6}, 60),  # whole groups too
        (44, {"actor.num_gpus_per_node": 2, "ds.ring_attn_size": 4}, 44),  # four GPUs are one rank
    ],
    ids=str,
)
def test_a_rollout_batch_is_cut_to_what_can_be_trained_on(prompt_args, caplog, responses, changes, kept):
    from openrlhf.trainer.ppo_utils import samples_generator

    ranks = {"actor.num_nodes": 2, "actor.num_gpus_per_node": 4, "train.batch_size": 32}
    args = prompt_args(16, 4, **{**ranks, **changes})
    generator = samples_generator.SamplesGenerator(SimpleNamespace(args=args), [], None, None, [])
    generator._generate_vllm = lambda **_: (list(range(responses)), responses // 4, True)
    samples, _, consumed, exhausted = generator.generate_samples()
    assert samples == list(range(kept)) and consumed == responses // 4 and exhausted
    assert (f"{responses - kept} of the {responses} responses" in caplog.text) == (kept < responses)


@pytest.mark.parametrize(("responses", "left"), [(M * G, 0), (M * G + 4, 4), (4, 4)])
def test_one_rank_names_the_responses_that_fill_no_optimizer_step(tmp_path, caplog, responses, left):
    """Upstream drops them without a word, or mixes them into the next step."""
    run = trainer(arguments(tmp_path, "ebpo", to=1), {"global_step": 0})
    run.init_checkpoint_states()
    run.train_step([None] * responses, 0)
    assert (f"the last {left} of {responses} responses" in caplog.text) == (left > 0)
