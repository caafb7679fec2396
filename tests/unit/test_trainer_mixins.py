"""The rules of our own parts in TRL's, ms-swift's and verl's trainers, on stand-ins with their signatures, which
test_trainer_hooks.py compares with the published packages. tests/integrations/ runs the real trainers."""

import importlib
import sys
from collections import defaultdict, deque
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.integrations.running import RunningEstimator

GROUP = 2
FIRST, SECOND = [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]


class GRPOTrainer:
    """TRL's order of calls around the methods that the mixin extends; two processes, of which this is one."""

    def __init__(
        self, folder: Path, process: int = 0, steps_per_generation: int = 1, reward_weights=(1.0,), args=None, tools=()
    ):
        self.num_iterations = 1
        self.args = SimpleNamespace(
            output_dir=str(folder),
            should_save=process == 0,
            gradient_accumulation_steps=1,
            steps_per_generation=steps_per_generation,
        )
        self.num_generations, self.reward_weights = GROUP, torch.tensor(reward_weights)
        self.model, self._step = SimpleNamespace(training=True), 0
        self.state = SimpleNamespace(global_step=0, best_model_checkpoint=None)
        self.accelerator = SimpleNamespace(process_index=process, gather=lambda local: torch.cat([local, local]))
        self._logs, self._metrics = {"advantages": deque()}, {"train": defaultdict(list)}
        self.saves_weights, self.pushed = True, []

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        return torch.tensor(inputs).reshape(len(inputs), -1)

    def _generate_and_score_completions(self, inputs):
        self._calculate_rewards(inputs, [], [], [])
        self._logs["advantages"].extend([9.0] * len(inputs))
        local = len(inputs) // 2
        return {"advantages": torch.full((local,), 9.0), "completion_mask": torch.ones(local, 3)}

    def _get_per_token_logps_and_entropies(self, *inputs): ...

    def _prepare_inputs(self, inputs):
        return self._generate_and_score_completions(inputs)

    def _get_output_dir(self, trial):
        return self.args.output_dir

    def _save_checkpoint(self, model, trial):
        folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        if self.saves_weights:
            self._save(str(folder))
        self.pushed.append((folder / "prior.json").exists())

    def _save(self, output_dir=None, state_dict=None): ...

    def _load_best_model(self): ...

    def _load_optimizer_and_scheduler(self, checkpoint): ...


class GRPOConfig:
    num_generations, multi_objective_aggregation = GROUP, "sum_then_normalize"


@pytest.fixture
def trl(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "trl", module("trl", GRPOTrainer=GRPOTrainer, GRPOConfig=GRPOConfig, __version__="1.17.0")
    )
    yield importlib.import_module("openrlhf_ebpo.integrations.trl")
    del sys.modules["openrlhf_ebpo.integrations.trl"]


def module(name: str, **names) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(names)
    return made


def step(trainer, rewards) -> torch.Tensor:
    """One generation, and the optimizer step after it."""
    output = trainer._prepare_inputs(rewards)
    trainer.state.global_step += 1
    return output["advantages"]


def batches(folder: Path) -> int:
    running = RunningEstimator("ebpo", GROUP)
    running.load(folder)
    return running.pack()["batches"]


@pytest.mark.parametrize("process", [0, 1])
def test_each_process_of_trl_gets_its_own_advantages_of_one_estimate(trl, tmp_path, process):
    trainer, alone = trl.EBPOTrainer(tmp_path, process), RunningEstimator("ebpo", GROUP)
    for rewards in (FIRST, SECOND):
        expected = alone.step(rewards).advantages.ravel()
        assert step(trainer, rewards).tolist() == pytest.approx(expected[2 * process : 2 * process + 2])
        assert list(trainer._logs["advantages"])[-4:] == pytest.approx(expected), "9.0 are TRL's own"
    assert 9.0 not in trainer._logs["advantages"] and trainer.running.pack() == alone.pack()
    assert len(trainer._metrics["train"]["ebpo/shrinkage"]) == 2


def test_an_evaluation_of_trl_changes_neither_its_advantages_nor_the_prior(trl, tmp_path):
    trainer = trl.EBPOTrainer(tmp_path)
    step(trainer, FIRST)
    before = trainer.running.pack(), trainer.running.pack(before=True)
    trainer.model.training = False
    assert trainer._generate_and_score_completions(SECOND)["advantages"].tolist() == [9.0, 9.0]
    assert (trainer.running.pack(), trainer.running.pack(before=True)) == before


@pytest.mark.parametrize(("steps", "iterations"), [(2, 1), (1, 2)])
def test_a_checkpoint_of_trl_within_a_cycle_has_the_state_before_its_prompts(trl, tmp_path, steps, iterations):
    """They are drawn again at a resume; at the end of the cycle they are not."""
    trainer = trl.EBPOTrainer(tmp_path, steps_per_generation=steps)
    trainer.num_iterations = iterations
    step(trainer, FIRST)
    trainer.state.global_step = 2
    step(trainer, SECOND)
    trainer._save_checkpoint(None, None)
    assert batches(tmp_path / "checkpoint-3") == batches(tmp_path) == 1
    trainer.state.global_step = 4
    trainer._save_checkpoint(None, None)
    assert batches(tmp_path / "checkpoint-4") == 2
    trainer._load_optimizer_and_scheduler(str(tmp_path / "checkpoint-3"))
    assert trainer.running.pack()["batches"] == 1
    trainer._load_optimizer_and_scheduler(None)
    trainer.state.best_model_checkpoint = str(tmp_path / "checkpoint-4")
    trainer._load_best_model()
    assert trainer.running.pack()["batches"] == 2, "the best weights' own prior is exported with them"


@pytest.mark.parametrize(("process", "written"), [(0, [True]), (1, [False])])
def test_the_prior_lies_in_trls_checkpoint_before_a_push_though_no_weights_are_saved(trl, tmp_path, process, written):
    """As FSDP with sharded weights does; one process writes."""
    trainer = trl.EBPOTrainer(tmp_path, process)
    trainer.saves_weights = False
    step(trainer, FIRST)
    trainer._save_checkpoint(None, None)
    assert trainer.pushed == written


def test_rewards_of_trl_are_weighted_and_what_no_function_scored_is_left_out(trl, tmp_path):
    trainer, alone = trl.EBPOTrainer(tmp_path, 0, 2, (1.0, 0.5)), RunningEstimator("ebpo", GROUP)
    nan = float("nan")
    expected = alone.step([1.5, 0.5, 1.0, nan]).advantages.ravel()
    found = step(trainer, [[1.0, 1.0], [nan, 1.0], [1.0, 0.0], [nan, nan]])
    assert found.tolist() == pytest.approx(expected[:2]) and trainer.running.pack() == alone.pack()
    trainer.state.global_step = 2
    assert step(trainer, [[nan, nan]] * 4).tolist() == [9.0, 9.0] and trainer.running.pack() == alone.pack()
    trainer._save_checkpoint(None, None)
    assert batches(tmp_path / "checkpoint-3") == 1, "a cycle without a reward leaves the state as it was"


def without(*names: str) -> type:
    """The stand-in as a release that has lost these methods."""
    return type("GRPOTrainer", (), {name: part for name, part in vars(GRPOTrainer).items() if name not in names})


def renamed(self, inputs):
    """Scores under another name than the mixin knows."""


@pytest.mark.parametrize(
    ("base", "named"),
    [
        (object, "__init__, _calculate_rewards, _generate_and_score_completions"),
        (without("_calculate_rewards"), "_calculate_rewards missing"),
        (type("Later", (), {**vars(GRPOTrainer), "__init__": renamed}), "__init__: num_iterations, __init__: reward"),
        (
            type("Later", (), {**vars(GRPOTrainer), "_generate_and_score_completions": renamed}),
            "_generate_and_score_completions: _calculate_rewards missing",
        ),
    ],
)
def test_a_trainer_without_a_hook_is_refused_by_its_name_before_it_is_made(trl, tmp_path, base, named):
    mixed = type("Mixed", (trl.EBPOMixin, base), {})
    with pytest.raises(UsageError, match=rf"trl 1\.17\.0, Mixed: .*{named}.*EBPOMixin goes before"):
        mixed(tmp_path)


def test_what_hides_rewards_is_refused_before_trl_loads_the_model(trl, tmp_path, monkeypatch):
    loading = vars(GRPOTrainer)["__init__"]

    def loads(*args, **kwargs):
        pytest.fail("the model is loaded")

    loads.__wrapped__ = loading
    monkeypatch.setattr(GRPOTrainer, "__init__", loads)
    hiding = SimpleNamespace(num_generations=GROUP, multi_objective_aggregation="normalize_then_sum")
    for refused, args, estimator in (("normalize_then_sum", hiding, "ebpo"), ("ebop", GRPOConfig(), "ebop")):
        with pytest.raises(UsageError, match=refused):
            trl.EBPOTrainer(tmp_path, 0, 1, (1.0,), args, estimator=estimator)


def test_trls_tools_are_refused_with_an_estimator_that_needs_log_probabilities(trl, tmp_path):
    assert step(trl.EBPOTrainer(tmp_path, tools=[print]), FIRST).any()
    with pytest.raises(UsageError, match=r"'ebpo'.*tools"):
        trl.EBPOTrainer(tmp_path, estimator="ebpo.robust", tools=[print])


def test_a_trainer_that_scores_elsewhere_is_refused_at_its_first_batch(trl, tmp_path):
    """As axolotl's AsyncGRPOTrainer does, whose advantages would stay GRPO's."""

    def prepare(self, inputs):
        return inputs if self.model.training else self._generate_and_score_completions(inputs)

    elsewhere = type("AsyncGRPOTrainer", (GRPOTrainer,), {"_prepare_inputs": prepare})
    mixed = type("Mixed", (trl.EBPOMixin, elsewhere), {})(tmp_path)
    mixed.model.training = False
    mixed._prepare_inputs(FIRST)
    mixed.model.training = True
    with pytest.raises(UsageError, match=r"Mixed does not score in .*EBPOMixin would change nothing"):
        mixed._prepare_inputs(FIRST)


class UnslothGRPOTrainer(GRPOTrainer):
    """Of Unsloth: scores text alone, and leaves the model in training mode."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.model.training = True
        return output


def test_the_trainer_is_a_subclass_of_what_unsloth_put_in_trls_place(trl, tmp_path, monkeypatch):
    """Though our module was imported before it; an evaluation stays one."""
    mine = type("Mine", (trl.EBPOTrainer,), {})
    assert type(trl.EBPOTrainer(tmp_path)).__mro__[-2] is GRPOTrainer
    monkeypatch.setattr(sys.modules["trl"], "GRPOTrainer", UnslothGRPOTrainer)
    for made in (trl.EBPOTrainer(tmp_path), mine(tmp_path)):
        assert isinstance(made, UnslothGRPOTrainer) and isinstance(made, trl.EBPOTrainer)
        made.model.training = False
        step(made, SECOND)
        assert step(made, FIRST).any()
        made.model.training = False
        assert step(made, SECOND).tolist() == [9.0, 9.0] and made.running.pack()["batches"] == 1


# ms-swift


class SwiftTrainer(GRPOTrainer):
    """ms-swift's GRPOTrainer: made without TRL's, with two micro-batches of its own for the generation batch."""

    def __init__(self, *, args, template):
        super().__init__(args.folder)
        self.args.gradient_accumulation_steps, self.args.steps_per_generation = 2, 2
        self.dynamic_num_samples = False

    def _compute_advantages(self, samples, rewards_per_func, batch_encoded_inputs):
        return torch.full((len(rewards_per_func),), 9.0)


@pytest.fixture
def swift(trl, monkeypatch):
    factory = type("TrainerFactory", (), {"TRAINER_MAPPING": {"grpo": "swift.rlhf_trainers.GRPOTrainer"}})
    monkeypatch.setitem(sys.modules, "swift", ModuleType("swift"))
    monkeypatch.setitem(sys.modules, "swift.rlhf_trainers", module("swift.rlhf_trainers", GRPOTrainer=SwiftTrainer))
    monkeypatch.setitem(sys.modules, "swift.trainers", module("swift.trainers", TrainerFactory=factory))
    found = importlib.import_module("openrlhf_ebpo.integrations.swift")
    found.factory = factory
    yield found
    del sys.modules["openrlhf_ebpo.integrations.swift"]


def swift_trainer(swift, folder: Path, parallel: int = 1, **settings):
    config = {"folder": folder, "num_generations": GROUP, "kl_in_reward": False, "beta": 0.0, "scale_rewards": "group"}
    template = SimpleNamespace(sequence_parallel_size=parallel)
    return swift.EBPOTrainer(args=SimpleNamespace(**config | settings), template=template)


def swift_batches(log_probs=(-1.0, -0.1)) -> list[dict]:
    """Two micro-batches of one response each; the other process has the same."""
    masks = [torch.tensor([[1, 1, 0]]), torch.tensor([[1, 0, 0]])]
    pairs = zip(log_probs, masks, strict=True)
    made = [SimpleNamespace(old_per_token_logps=torch.full((1, 3), each), completion_mask=mask) for each, mask in pairs]
    return [{"grpo_batch": each} for each in made]


@pytest.mark.parametrize("name", ["ebpo", "ebpo.robust"])
def test_swifts_advantages_are_the_estimators_of_all_processes(swift, tmp_path, name):
    swift.use(name)
    assert swift.factory.TRAINER_MAPPING["grpo"] == "openrlhf_ebpo.integrations.swift.EBPOTrainer"
    trainer, rewards = swift_trainer(swift, tmp_path), torch.tensor(FIRST)[:, None]
    weights = [2 * (1 - np.exp(-1.0)) ** 2, (1 - np.exp(-0.1)) ** 2] * 2
    expected = RunningEstimator(name, GROUP).step(FIRST, [2.0, 1.0] * 2, lambda: weights)
    found = trainer._compute_advantages([], rewards, swift_batches())
    assert found.tolist() == pytest.approx(expected.advantages.ravel()) and found.dtype == torch.float32
    trainer.state.global_step = 1
    trainer._save_checkpoint(None, None)
    trainer.model.training = False
    assert trainer._compute_advantages([], rewards, swift_batches()).tolist() == [9.0] * 4
    after, resumed = trainer.running.pack(), swift_trainer(swift, tmp_path)
    resumed._load_optimizer_and_scheduler(str(tmp_path / "checkpoint-1"))
    assert resumed.running.pack() == after != RunningEstimator(name, GROUP).pack()


def test_what_swift_cannot_give_is_refused(swift, tmp_path):
    for named, settings in (
        ("kl_in_reward", {"kl_in_reward": True, "beta": 0.04}),
        ("gdpo", {"scale_rewards": "gdpo"}),
        ("sequence_parallel_size", {"parallel": 2}),
    ):
        with pytest.raises(UsageError, match=named):
            swift_trainer(swift, tmp_path, **settings)
    trainer = swift_trainer(swift, tmp_path)
    trainer.dynamic_num_samples = True
    with pytest.raises(UsageError, match="unequal numbers"):
        trainer._compute_advantages([], torch.tensor(FIRST)[:, None], swift_batches())


# verl


class Config(SimpleNamespace):
    def get(self, name, default=None):
        return getattr(self, name, default)


class Callback:
    def __init__(self, config=None): ...


class PPOTrainer:
    """Of verl: computes advantages where it has made the callback."""

    def _compute_advantage(self, batch, metrics):
        return self.advantages(*batch)[0]


@pytest.fixture
def verl(monkeypatch):
    registered = {}

    def latest(folder):
        found = sorted(Path(folder).glob("global_step_*"))
        return str(found[-1]) if found else None

    ppo = "verl.trainer.ppo"
    stand_ins = {
        f"{ppo}.checkpoint_callback": {"CheckpointCallback": Callback},
        f"{ppo}.core_algos": {
            "ADV_ESTIMATOR_REGISTRY": registered,
            "AdvantageEstimator": [SimpleNamespace(value="rloo"), SimpleNamespace(value="opo")],
            "register_adv_est": lambda name: lambda function: registered.setdefault(name, function),
        },
        f"{ppo}.v1.trainer_base": {"PPOTrainer": type("PPOTrainer", (PPOTrainer,), dict(vars(PPOTrainer)))},
        "verl.utils.checkpoint.checkpoint_manager": {"find_latest_ckpt_path": latest},
    }
    for name in stand_ins:
        parts = name.split(".")
        for i in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:i]), ModuleType(parts[i - 1]))
    for name, names in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module(name, **names))
    found = importlib.import_module("openrlhf_ebpo.integrations.verl")
    found.registered, found.trainer = registered, stand_ins[f"{ppo}.v1.trainer_base"]["PPOTrainer"]
    yield found
    del sys.modules["openrlhf_ebpo.integrations.verl"]


def config(folder: Path, name: str = "ebpo", resume: str = "auto", path=None, **algorithm) -> Config:
    trainer = SimpleNamespace(resume_mode=resume, resume_from_path=path, default_local_dir=str(folder))
    rollout = SimpleNamespace(rollout=SimpleNamespace(n=GROUP))
    return Config(algorithm=Config(adv_estimator=name, **algorithm), actor_rollout_ref=rollout, trainer=trainer)


def rows(rewards, lengths=(3, 1, 2, 3)):
    """Token rewards at each response's end, and its mask; responses of two prompts, one after the other."""
    mask = torch.tensor([[1.0] * length + [0.0] * (3 - length) for length in lengths])
    given = torch.zeros(4, 3)
    for row, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        given[row, max(length - 1, 0)] = reward
    return given, mask, ["a", "b", "a", "b"]


def test_verls_names_stay_its_own_and_the_others_are_ours(verl):
    assert {"ebpo", "group_norm", "maxrl"} <= verl.registered.keys() and not {"rloo", "opo"} & verl.registered.keys()


def test_verls_advantages_are_the_estimators_on_the_tokens_of_each_response(verl, tmp_path):
    verl.PriorCheckpoint(config(tmp_path))
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    expected = RunningEstimator("ebpo", GROUP).step(rewards[[0, 2, 1, 3]]).advantages.ravel()[[0, 2, 1, 3]]
    given, mask, index = rows(rewards)
    found, returns = verl.advantages(given, mask, index)
    assert torch.equal(found, returns) and torch.equal(found, found * mask)
    assert found[:, 0].tolist() == pytest.approx(expected, rel=1e-6)
    empty = verl.advantages(*rows([1.0, 0.0, 0.0, 0.0], lengths=(3, 1, 0, 3)))[0]
    assert empty[2].tolist() == [0, 0, 0] and verl._running.pack()["rewards"]["count"] == 7


def test_verl_resumes_from_the_checkpoint_that_it_loads(verl, tmp_path):
    callback = verl.PriorCheckpoint(config(tmp_path))
    for number, rewards in enumerate((FIRST, SECOND), 1):
        verl.advantages(*rows(rewards))
        (folder := tmp_path / f"global_step_{number}").mkdir()
        callback.on_save(trainer=None, global_step=number, checkpoint_dir=str(folder), async_save=False, new="later")
    one = str(tmp_path / "global_step_1")
    for resume, path, count in (("auto", None, 2), ("resume_path", one, 1), ("disable", None, 0)):
        again = verl.PriorCheckpoint(config(tmp_path, resume=resume, path=path))
        assert again.running.pack()["batches"] == count and verl._running is again.running
    (tmp_path / "global_step_2" / "prior.json").unlink()
    with pytest.raises(ReportedError, match="no such prior file"):
        verl.PriorCheckpoint(config(tmp_path))
    verl.PriorCheckpoint(config(tmp_path, ebpo={"reset_prior": True}))


def test_verls_step_has_the_estimators_metrics_once(verl, tmp_path):
    verl.PriorCheckpoint(config(tmp_path))
    trainer, metrics = verl.trainer(), {}
    trainer.checkpoint_callback, trainer.advantages = verl.PriorCheckpoint(config(tmp_path)), verl.advantages
    assert trainer._compute_advantage(rows(FIRST), metrics).shape == (4, 3)
    assert metrics["ebpo/prior_count"] == 4
    assert not hasattr(verl.trainer._compute_advantage.__wrapped__, "__wrapped__")


def test_what_verl_cannot_give_is_refused(verl, tmp_path):
    with pytest.raises(UsageError, match="checkpoint_callback_class"):
        verl.advantages(*rows(FIRST))
    with pytest.raises(UsageError, match="use_kl_in_reward"):
        verl.PriorCheckpoint(config(tmp_path, use_kl_in_reward=True))
    with pytest.raises(UsageError, match="log-probabilities"):
        verl.PriorCheckpoint(config(tmp_path, "ebpo.robust"))
