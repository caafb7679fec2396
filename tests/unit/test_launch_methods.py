"""Each method of the launch scripts sets the flags of a table, in all orders, and passes its dry run."""

import pytest
from launching import METHODS, bash, composed, dry_runs, furnish, value

ORDERS = ("shuffle", "topic", "difficulty")
# an order sets the same flags for every method; dapo changes one that an order changes too
RUNS = [(method, order) for method in METHODS for order in ORDERS if order == "shuffle" or method in ("ebpo", "dapo")]
# Flags that make the run: what a method or an order changes in it. None: not there; True: there, without a value.
PAPER = {
    "--algo.kl.use_loss": True,
    "--algo.kl.estimator": "k3",
    "--algo.kl.init_coef": "0.001",
    "--actor.eps_clip_low_high": "0.2 0.2",
    "--actor.dual_clip": "3.0",
    "--actor.policy_loss_type": None,
    "--actor.loss_agg_mode": "token-mean",
    "--rollout.n_samples_per_prompt": "4",
    "--rollout.batch_size": "512",
    "--train.batch_size": "512",
    "--train.num_episodes": "30",
    "--train.micro_batch_size": None,
    "--train.dynamic_batch_enable": True,
    "--data.max_len": "12288",
    "--rollout.max_new_tokens": "8192",
    "--rollout.temperature": "1.0",
    "--rollout.top_p": "1.0",
    "--actor.adam.lr": "1e-6",
    "--actor.adam.weight_decay": "0.01",
    "--actor.adam.betas": "0.9 0.999",
    "--actor.lr_scheduler": "constant",
    "--actor.lr_warmup_ratio": None,
    "--actor.max_norm": "1.0",
    "--reward.remote_url": "math",
    "--reward.overlong_buffer_len": None,
    "--reward.overlong_penalty_factor": None,
    "--algo.dynamic_filtering_enable": None,
    "--algo.dynamic_filtering_range": None,
    "--actor.kl_cov.ratio": None,
    "--ckpt.save_steps": "50",
    "--ckpt.save_minutes": "60",
    "--ckpt.best_metric_key": None,
    "--eval.steps": "50",
    "--eval.temperature": "1.0",
    "--eval.n_samples_per_prompt": "16",
    "--data.order": None,
    "--data.cluster_key": None,
}
NO_KL = {"--algo.kl.use_loss": None, "--algo.kl.estimator": None, "--algo.kl.init_coef": "0"}
MIXED = {"--algo.dynamic_filtering_enable": True, "--algo.dynamic_filtering_range": "0 1"}
WIDE = {"--actor.eps_clip_low_high": "1.0 1.0", "--actor.dual_clip": None, "--actor.policy_loss_type": "clip_cov"}
UNCLIPPED = {"--actor.eps_clip_low_high": None, "--actor.dual_clip": None, "--actor.policy_loss_type": "kl_cov"}
DAPO = {
    **{"--train.batch_size": "128", "--train.num_episodes": "60", "--actor.adam.weight_decay": "0.1"},
    **{"--actor.lr_scheduler": "constant_with_warmup", "--actor.lr_warmup_ratio": "1"},  # of 8 rows; of all: below
    **{"--actor.eps_clip_low_high": "0.2 0.28"},
    **{"--actor.dual_clip": "10.0", "--reward.overlong_buffer_len": "4096", "--reward.overlong_penalty_factor": "0.5"},
}
# method -> estimator, changes to PAPER
TABLE = {
    "ebpo": ("ebpo", {}),
    "grpo": ("group_norm", {}),
    "dr_grpo": ("dr_grpo", {}),
    "dapo": ("group_norm", DAPO | NO_KL | MIXED),
    "clip_cov": ("group_norm", WIDE | NO_KL),
    "kl_cov": ("group_norm", UNCLIPPED | NO_KL),
    "rloo": ("rloo", {}),
    "reinforce_pp": ("reinforce", {}),
    "reinforce_baseline": ("reinforce_baseline", {}),
}
ONE_PASS = {"--train.num_episodes": "1", "--data.order": "as_is", "--ckpt.save_steps": "10"}
OF_ORDER = {
    "shuffle": {},
    "topic": {"--data.order": "as_is", "--data.cluster_key": "cluster"},
    "difficulty": ONE_PASS | {"--eval.steps": "10"},
}


def expected(method: str, order: str) -> dict:
    """Flag -> words of the row."""
    estimator, changes = TABLE[method]
    return {"--algo.advantage.estimator": estimator} | PAPER | changes | OF_ORDER[order]


def words_of(argv: list[str]) -> dict:
    """Flag -> its words, joined; True without words."""
    found, flag = {}, None
    for word in argv:
        if word.startswith("--"):
            flag = word
            assert flag not in found, f"{flag} twice"
            found[flag] = []
        else:
            found[flag].append(word)
    return {flag: " ".join(words) or True for flag, words in found.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return furnish(tmp_path_factory.mktemp("tracks"))


@pytest.fixture(scope="module")
def argvs(place) -> dict:
    """(method, order) -> the composed flags."""
    env = {"DATA_DIR": place / "data", "RUN_DIR": place / "run", "MODEL_PATH": place / "models" / "qwen3_8b"}
    return {(method, order): composed("qwen3_8b", method, 4, "--order", order, **env) for method, order in RUNS}


@pytest.mark.parametrize(("method", "order"), RUNS)
def test_a_rows_flags_are_those_of_the_table(method, order, argvs):
    found, wanted = words_of(argvs[method, order]), expected(method, order)
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.fixture(scope="module")
def answers(argvs) -> dict:
    """Return the output of dry runs: of each method on shuffled prompts, and of EBPO in each order."""
    chosen = {row: argv for row, argv in argvs.items() if row[1] == "shuffle" or row[0] == "ebpo"}
    return dict(zip(chosen, dry_runs(list(chosen.values())), strict=True))


def test_every_method_passes_the_dry_run_in_all_orders(answers):
    assert {row: answer["error"] for row, answer in answers.items() if "error" in answer} == {}
    assert answers["ebpo", "shuffle"]["args"]["algo"]["advantage"]["ebpo"]["preset"] == "paper"


@pytest.mark.parametrize("method", METHODS)
def test_the_reference_model_is_there_where_the_method_has_a_kl_term(method, answers):
    kl = answers[method, "shuffle"]["args"]["algo"]["kl"]
    assert (kl["init_coef"] > 0) == ("--algo.kl.use_loss" not in TABLE[method][1])


def test_no_method_is_missing_from_the_table():
    assert sorted(TABLE) == METHODS


# --- data and names


@pytest.mark.parametrize(
    ("order", "data"),
    [("shuffle", "train"), ("topic", "topic_order"), ("difficulty", "difficulty_order_qwen3_8b")],
)
def test_each_order_has_its_data(order, data):
    argv = composed("qwen3_8b", "grpo", 4, "--order", order)
    assert value(argv, "--data.prompt_dataset") == f"data/dapo/{data}.parquet"
    assert value(argv, "--actor.model_name_or_path") == "Qwen/Qwen3-8B"


def test_another_model_has_pass_rates_of_its_own():
    argv = composed("qwen3_8b", "grpo", 4, "--order", "difficulty", MODEL_PATH="/models/Qwen3-8B-Base/")
    assert value(argv, "--data.prompt_dataset") == "data/dapo/difficulty_order_qwen3_8b_base.parquet"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("grpo 4", "qwen3_8b-grpo-g4"),
        ("grpo 4 --order shuffle", "qwen3_8b-grpo-g4"),
        ("grpo 8 --order=topic", "qwen3_8b-grpo-g8-topic"),
        ("grpo 4 --order difficulty", "qwen3_8b-grpo-g4-difficulty"),
    ],
)
def test_the_run_is_named_by_what_is_not_the_default(words, name):
    argv = composed("qwen3_8b", *words.split())
    assert value(argv, "--logger.run_dir") == f"runs/{name}/run" and value(argv, "--logger.wandb.run_name") == name


# --- what follows from the data


def test_dapos_warm_up_is_ten_rollout_batches_of_the_real_data(place):
    """Upstream rounds share times updates up; a rollout batch is 512 / 32 updates."""
    import math

    rows, passes = 16_900, 60
    share = float(
        value(composed("qwen3_8b", "dapo", 4), "--actor.lr_warmup_ratio")
    )  # no data there: as many as there are
    assert math.ceil(rows // 32 * passes * share) == 160
    few = float(value(composed("qwen3_8b", "dapo", 4, "--train.num_episodes", 3), "--actor.lr_warmup_ratio"))
    assert math.ceil(rows // 32 * 3 * few) == 160
    assert value(composed("qwen3_8b", "dapo", 4, DATA_DIR=place / "data"), "--actor.lr_warmup_ratio") == "1"  # 8 rows


@pytest.mark.parametrize("passes", ["abc", "0", "-1"])
def test_passes_that_are_no_number_are_told_by_their_flag(passes):
    result = bash("run.sh", "--print", "qwen3_8b", "dapo", 4, "--train.num_episodes", passes)
    assert result.returncode == 2
    assert result.stderr == f"error: --train.num_episodes is '{passes}'; give a whole number, 1 or more\n"
