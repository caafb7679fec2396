"""What each method of the launch scripts sets, in both tracks and all orders, held against a table; and every row passes."""

import itertools

import pytest
from launching import LAUNCH, METHODS, ROOT, bash, composed, dry_runs, furnish, value

ORDERS = ("shuffle", "topic", "difficulty")
OWN = ("clip_cov_own", "dr_grpo_own", "kl_cov_own")  # recipes of others than EBPO's authors: in the paper track alone
RUNS = [
    (track, method, order)
    for track, method, order in itertools.product(("paper", "released"), METHODS, ORDERS)
    if track == "paper" or method not in OWN
]
# Flags that make the run: what a method or an order changes in it. None: not there; True: there, without a value.
PAPER = {
    "--algo.kl.use_loss": True,
    "--algo.kl.estimator": "k3",
    "--algo.kl.init_coef": "0.001",
    "--actor.eps_clip_low_high": "0.2 0.2",
    "--actor.dual_clip": "3.0",
    "--actor.policy_loss_type": None,
    "--actor.loss_agg_mode": "token-mean",
    "--actor.loss_mean": None,
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
    "--algo.advantage.ebpo.preset": None,
    "--algo.dynamic_filtering_enable": None,
    "--algo.dynamic_filtering_range": None,
    "--actor.kl_cov.ratio": None,
    "--ckpt.save_steps": "50",
    "--ckpt.save_minutes": "60",
    "--ckpt.best_metric_key": "maj@16",
    "--eval.steps": "50",
    "--eval.temperature": "1.0",
    "--eval.n_samples_per_prompt": "16",
    "--eval.metrics": "maj@16",
    "--data.order": None,
    "--data.cluster_key": None,
}
RELEASED = PAPER | {
    "--actor.loss_mean": "micro_batch",
    "--train.num_episodes": "20",
    "--train.micro_batch_size": "2",
    "--train.dynamic_batch_enable": None,
    "--reward.remote_url": "dapo",
    "--ckpt.save_steps": "10",
    "--ckpt.best_metric_key": "none",
    "--eval.steps": "5",
    "--eval.temperature": "0.0",
    "--eval.n_samples_per_prompt": "1",
    "--eval.metrics": None,
}
ONE_NODE = {"--train.num_episodes": "6", "--ckpt.save_steps": "50"}
NO_KL = {"--algo.kl.use_loss": None, "--algo.kl.estimator": None, "--algo.kl.init_coef": "0"}
MIXED = {"--algo.dynamic_filtering_enable": True, "--algo.dynamic_filtering_range": "0 1"}
ENTROPYMECH = {
    **{"--rollout.batch_size": "256", "--train.batch_size": "128", "--data.max_len": "10240"},
    **{"--actor.adam.lr": "5e-7", "--actor.adam.weight_decay": "0", "--actor.dual_clip": None},
    **{"--ckpt.save_steps": "32", "--eval.steps": "32"},
}
WIDE = {"--actor.eps_clip_low_high": "1.0 1.0", "--actor.dual_clip": None, "--actor.policy_loss_type": "clip_cov"}
UNCLIPPED = {"--actor.eps_clip_low_high": None, "--actor.dual_clip": None, "--actor.policy_loss_type": "kl_cov"}
DAPO = {
    **{"--train.batch_size": "128", "--train.num_episodes": "60", "--actor.adam.weight_decay": "0.1"},
    **{"--actor.lr_scheduler": "constant_with_warmup", "--actor.lr_warmup_ratio": "1"},  # of 8 rows; of all: below
    **{"--actor.eps_clip_low_high": "0.2 0.28"},
    **{"--actor.dual_clip": "10.0", "--reward.overlong_buffer_len": "4096", "--reward.overlong_penalty_factor": "0.5"},
}
# method -> estimator, changes in the paper track, changes in the released track
TABLE = {
    "ebpo": ("ebpo", {}, {"--algo.advantage.ebpo.preset": "release"}),
    "grpo": ("group_norm", {}, ONE_NODE),
    "dr_grpo": ("dr_grpo", {}, ONE_NODE),
    "dr_grpo_own": ("dr_grpo", NO_KL, None),
    "dapo": ("group_norm", DAPO | NO_KL | MIXED, ONE_NODE | {"--actor.eps_clip_low_high": "0.2 0.28"}),
    "clip_cov": ("group_norm", WIDE | NO_KL, ONE_NODE | WIDE | NO_KL),
    "kl_cov": ("group_norm", UNCLIPPED | NO_KL, ONE_NODE | UNCLIPPED | NO_KL),
    "clip_cov_own": ("group_norm", ENTROPYMECH | WIDE | NO_KL | MIXED, None),
    "kl_cov_own": ("group_norm", ENTROPYMECH | UNCLIPPED | NO_KL | MIXED | {"--actor.kl_cov.ratio": "0.002"}, None),
    "rloo": ("rloo", {}, {}),
    "reinforce_pp": ("reinforce", {}, {}),
    "reinforce_baseline": ("reinforce_baseline", {}, {}),
}
ONE_PASS = {"--train.num_episodes": "1", "--data.order": "as_is", "--ckpt.save_steps": "10"}
OF_ORDER = {
    ("paper", "shuffle"): {},
    ("paper", "topic"): {"--data.order": "as_is", "--data.cluster_key": "cluster"},
    ("paper", "difficulty"): ONE_PASS | {"--eval.steps": "10"},
    ("released", "difficulty"): ONE_PASS,
}


def expected(track: str, method: str, order: str) -> dict:
    """Flag -> words of the row."""
    estimator, paper, released = TABLE[method]
    flags = {"--algo.advantage.estimator": estimator} | (PAPER | paper if track == "paper" else RELEASED | released)
    if track == "released" and method == "dapo":
        flags["--algo.advantage.estimator"] = "dr_grpo"
    flags |= OF_ORDER.get((track, order), OF_ORDER["paper", order])
    if "own" in method and order == "difficulty":
        flags |= {
            name: flags[name] if name not in ENTROPYMECH else TABLE[method][1].get(name, flags[name]) for name in flags
        }
    return flags


def words_of(argv: list[str]) -> dict:
    """Flag -> its words, joined; True where there are none."""
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
    """(track, method, order) -> the composed flags."""
    env = {"DATA_DIR": place / "data", "RUN_DIR": place / "run", "MODEL_PATH": place / "models" / "qwen3_8b"}
    return {
        (track, method, order): composed("qwen3_8b", method, 4, "--track", track, "--order", order, **env)
        for track, method, order in RUNS
    }


@pytest.mark.parametrize(("track", "method", "order"), RUNS)
def test_a_rows_flags_are_those_of_the_table(track, method, order, argvs):
    found, wanted = words_of(argvs[track, method, order]), expected(track, method, order)
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.fixture(scope="module")
def answers(argvs) -> dict:
    """What the dry runs say: of each method on shuffled prompts, and of EBPO in each order, in both tracks."""
    chosen = {row: argv for row, argv in argvs.items() if row[2] == "shuffle" or row[1] == "ebpo"}
    return dict(zip(chosen, dry_runs(list(chosen.values())), strict=True))


def test_every_method_passes_the_dry_run_in_both_tracks_and_all_orders(answers):
    assert {row: answer["error"] for row, answer in answers.items() if "error" in answer} == {}


def test_the_released_track_is_that_of_the_released_code_once_resolved(answers):
    args = answers["released", "ebpo", "topic"]["args"]
    ebpo, train = args["algo"]["advantage"]["ebpo"], args["train"]
    assert (ebpo["history"], ebpo["fail_reward"], ebpo["pass_reward"]) == ("batch", -1, 1)
    assert args["reward"]["remote_url"][0].endswith("dapo.py") and args["actor"]["loss_mean"] == "micro_batch"
    assert train["micro_batch_size"] == 2 and not train["dynamic_batch_enable"]
    assert answers["paper", "ebpo", "shuffle"]["args"]["algo"]["advantage"]["ebpo"]["history"] == "run"


@pytest.mark.parametrize("method", METHODS)
def test_the_reference_model_is_there_where_the_method_has_a_kl_term(method, answers):
    kl = answers["paper", method, "shuffle"]["args"]["algo"]["kl"]
    assert (kl["init_coef"] > 0) == ("--algo.kl.use_loss" not in (TABLE[method][1] or {}))


def test_no_method_is_missing_from_the_table():
    assert sorted(TABLE) == METHODS


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_file_says_what_it_does_in_both_tracks(method):
    lines = (LAUNCH / "methods" / f"{method}.sh").read_text().splitlines()
    assert lines[1].startswith("# ") and lines[1].endswith(".")
    comments = "\n".join(line for line in lines if line.startswith("#"))
    assert "released" in comments and "paper" in comments


# --- data and names


@pytest.mark.parametrize(
    ("track", "order", "data", "model"),
    [
        ("paper", "shuffle", "train", "Qwen/Qwen3-8B"),
        ("paper", "topic", "topic_order", "Qwen/Qwen3-8B"),
        ("paper", "difficulty", "difficulty_order_qwen3_8b", "Qwen/Qwen3-8B"),
        ("released", "shuffle", "train", "Qwen/Qwen3-8B"),
        ("released", "topic", "topic_order_release", "Qwen/Qwen3-8B"),
        ("released", "difficulty", "difficulty_order_qwen3_8b_base", "Qwen/Qwen3-8B-Base"),
    ],
)
def test_each_order_has_its_data_and_the_released_curriculum_the_base_model(track, order, data, model):
    argv = composed("qwen3_8b", "grpo", 4, "--track", track, "--order", order)
    assert value(argv, "--data.prompt_dataset") == f"data/dapo/{data}.parquet"
    assert value(argv, "--actor.model_name_or_path") == model


def test_another_model_has_pass_rates_of_its_own():
    argv = composed("qwen3_8b", "grpo", 4, "--order", "difficulty", MODEL_PATH="/models/Qwen3-8B-Base/")
    assert value(argv, "--data.prompt_dataset") == "data/dapo/difficulty_order_qwen3_8b_base.parquet"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("grpo 4", "qwen3_8b-grpo-g4"),
        ("grpo 4 --order shuffle --track paper", "qwen3_8b-grpo-g4"),
        ("grpo 8 --order=topic", "qwen3_8b-grpo-g8-topic"),
        ("dapo 4 --track released --order difficulty", "qwen3_8b-dapo-g4-difficulty-released"),
    ],
)
def test_the_run_is_named_by_what_is_not_the_default(words, name):
    argv = composed("qwen3_8b", *words.split())
    assert value(argv, "--logger.run_dir") == f"runs/{name}/run" and value(argv, "--logger.wandb.run_name") == name


def test_what_nobody_ran_is_said():
    said = bash("run.sh", "--print", "qwen3_8b", "grpo", 4, "--track", "released", "--order", "topic").stderr
    assert "the authors released no script for grpo --order topic" in said
    assert (
        "no script for llama3_1_8b" in bash("run.sh", "--print", "llama3_1_8b", "grpo", 4, "--track", "released").stderr
    )
    assert "G = 8, not 4" in bash("run.sh", "--print", "qwen3_8b", "kl_cov_own", 4).stderr
    assert not bash("run.sh", "--print", "qwen3_8b", "ebpo", 4, "--track", "released", "--order", "topic").stderr


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


def test_the_document_names_both_axes():
    text = (ROOT / "docs" / "paper.md").read_text()
    assert [name for name in ("--track released", "--order difficulty", *OWN) if name not in text] == []


@pytest.mark.parametrize("passes", ["abc", "0", "-1"])
def test_passes_that_are_no_number_are_told_by_their_flag(passes):
    result = bash("run.sh", "--print", "qwen3_8b", "dapo", 4, "--train.num_episodes", passes)
    assert result.returncode == 2
    assert result.stderr == f"error: --train.num_episodes is '{passes}'; give a whole number, 1 or more\n"
