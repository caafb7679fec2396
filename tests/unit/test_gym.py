"""reasoning-gym's kinds: their settings, tasks that are the same in every process, and labels that are checked at the start."""

import csv
import datetime
import itertools
import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_ebpo.checks import gym_check
from openrlhf_ebpo.data.gym import defaults
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards import gym, gym_maker, processes
from openrlhf_ebpo.rewards import pool as pool_module
from openrlhf_ebpo.rewards.gym_maker import make, maker

# settings are JSON, checked by the types of the configurations


def config(spec: str):
    name, settings = gym.parse_spec(spec)
    return gym.create(name, {"seed": 1, "size": 1, **settings}).config


def test_lists_in_lists_enumerations_dates_and_texts():
    ranges = config('rearc:{"rng_difficulty_ranges": [[0, 0.1], [0.1, 0.3]], "rng_difficulty_weights": [1, 1]}')
    assert list(map(list, ranges.rng_difficulty_ranges)) == [[0, 0.1], [0.1, 0.3]]
    assert config('word_sorting:{"transformation": "uppercase"}').transformation.name == "UPPERCASE"
    assert config('aiw:{"task_types": ["friends"], "task_type_weights": [1]}').task_types[0].value == "friends"
    made = config('time_intervals:{"min_date": "2000-01-01", "max_time": "13:30:00"}')
    assert (made.min_date, made.max_time) == (datetime.date(2000, 1, 1), datetime.time(13, 30))
    assert config('arc_agi:{"board_format_opts": {"col_delimiter": ","}}').board_format_opts.col_delimiter == ","
    assert config('figlet_font:{"static_word": "42"}').static_word == "42"
    assert config('figlet_font:{"static_word": null}').static_word is None
    assert config('chain_sum:{"allow_negation": false}').allow_negation is False


@pytest.mark.parametrize("name", sorted(gym.kinds()))
def test_what_the_list_prints_can_be_given_back(name):
    usual = defaults(gym.kinds()[name])
    _, given = gym.parse_spec(f"{name}:{json.dumps(usual)}")
    assert given == usual
    assert gym.as_json(gym.fitting(gym.kinds()[name], given)) == given


INTEGER, BOOLEAN = "Input should be a valid integer", "Input should be a valid boolean"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ('chain_sum:{"max_terms": 4.5}', f"the setting max_terms, 4.5: {INTEGER}"),
        ('chain_sum:{"max_terms": "four"}', f'the setting max_terms, "four": {INTEGER}'),
        ('chain_sum:{"max_terms": true}', f"the setting max_terms, true: {INTEGER}"),
        ('chain_sum:{"allow_negation": "False"}', f'the setting allow_negation, "False": {BOOLEAN}'),
        ('chain_sum:{"allow_negation": 1}', f"the setting allow_negation, 1: {BOOLEAN}"),
        ('binary_matrix:{"p_zero": NaN}', "NaN is not a number of JSON"),
        (
            'word_sorting:{"transformation": "loud"}',
            "Input should be 'lowercase', 'uppercase', 'original' or 'randomcase'",
        ),
        ('time_intervals:{"min_date": "2000"}', "the setting min_date"),
        ('rearc:{"rng_difficulty_ranges": [[0, 1, 2]]}', "the setting rng_difficulty_ranges, [[0, 1, 2]]: "),
        ('countdown:{"operators": "+"}', "the setting operators"),
        ('chain_sum:{"size": 100000000000000000000}', "size must be a whole number from 1 to 1,000,000, not 1000"),
        ('chain_sum:{"size": 1e3}', "size must be a whole number"),
        ('chain_sum:{"size": true}', "size must be a whole number"),
        (
            'chain_sum:{"max_term": 3}',
            "there is no setting max_term. Did you mean max_terms? Its settings are min_terms, ",
        ),
        ('CHAIN-SUM:{"size": 3}', "CHAIN-SUM: no such data set. Did you mean chain_sum?"),
        ("", "'' names no kind of tasks"),
        ("chain_sum:", """settings are a JSON object, as in 'chain_sum:{"size": 100, "seed": 1}', not  ("""),
        ("chain_sum:[1]", """settings are a JSON object, as in 'chain_sum:{"size": 100, "seed": 1}', not [1]"""),
        ("chain_sum:{'size': 3}", "not {'size': 3} (Expecting property name enclosed in double quotes"),
        (
            "chain_sum:size=5,seed=6",
            """settings are a JSON object, as in 'chain_sum:{"size": 100, "seed": 1}', not size=5,seed=6""",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(spec, problem):
    with pytest.raises(gym.EntryError) as error:
        gym.parse_spec(spec)
    assert problem in str(error.value) and len(str(error.value)) < 2500 and "\n" not in str(error.value)


# tasks


BY_HASH = (  # they go through sets of texts
    *("codeio", "isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note"),
    "word_ladder",
)
OTHERS = ("chain_sum", "arc_agi", "spell_backward")
SETTINGS = {"size": 6, "seed": 42}
DRAWN = 3


@pytest.fixture(scope="module", autouse=True)
def the_makers_end():
    yield
    maker().close()
    maker.cache_clear()


def drawn(names) -> dict[str, list]:
    return {name: [make(name, name, SETTINGS, index) for index in range(DRAWN)] for name in names}


def drawn_elsewhere(names) -> dict[str, list]:
    """In a process that is started for it."""
    maker().close()
    maker.cache_clear()
    return drawn(names)


def test_processes_with_other_hash_seeds_draw_the_same(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    one = drawn_elsewhere(BY_HASH)
    monkeypatch.setattr(processes, "HASH_SEED", "3")
    other = drawn_elsewhere(BY_HASH)
    assert [name for name in BY_HASH if other[name] == one[name]] in ([], ["codeio"])
    monkeypatch.undo()
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    assert drawn_elsewhere(reversed(BY_HASH)) == one


def test_what_is_the_same_in_every_process_anyway_is_as_it_was():
    found = drawn(OTHERS)
    for name in OTHERS:
        data = gym.create(name, SETTINGS)
        assert [gym.encode(name, {}, entry) for entry in found[name]] == [
            gym.encode(name, {}, data[i]) for i in range(DRAWN)
        ]


def test_problems_are_named_and_the_next_task_is_made():
    with pytest.raises(UsageError, match="my spec: reasoning-gym cannot make a task of these settings: IndexError"):
        make("my spec", "spell_backward", {"seed": 1, "min_word_len": 200, "max_word_len": 201}, 0)
    with pytest.raises(UsageError, match=r"chain_sum: .*Its settings are"):
        make("chain_sum", "chain_sum", {"min_terms": 0}, 0)
    with pytest.raises(gym.EntryError, match="an entry of gsm_symbolic cannot be saved"):
        for index in range(60):
            make("gsm_symbolic", "gsm_symbolic", {"seed": 777, "size": 60}, index)
    assert "question" in make("chain_sum", "chain_sum", SETTINGS, 0)


def test_an_end_of_the_process_is_named(monkeypatch):
    monkeypatch.setattr(gym_maker, "MAKE_SECONDS", 0.0001)
    with pytest.raises(UsageError, match=r"of these settings: (it|its process) took longer than 0\.0001 s"):
        make("arc_agi", "arc_agi", SETTINGS, 1)


# without pycosat


def brute_force(clauses: list[tuple[int, ...]], variables: int) -> set[tuple[int, ...]]:
    signs = itertools.product((-1, 1), repeat=variables)
    models = (tuple(sign * (i + 1) for i, sign in enumerate(row)) for row in signs)
    return {model for model in models if all(any(literal in model for literal in clause) for clause in clauses)}


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_every_solution_once(seed):
    draw = random.Random(seed)
    clauses = [tuple(draw.choice((-1, 1)) * v for v in draw.sample(range(1, 7), 3)) for _ in range(draw.randint(6, 30))]
    clauses += [(v, -v) for v in range(1, 7)]
    found = [tuple(model) for model in gym.itersolve(clauses)]
    assert len(found) == len(set(found)) and set(found) == brute_force(clauses, 6)


def test_reasoning_gym_makes_zebra_puzzles_with_it():
    code = """
from openrlhf_ebpo.rewards import gym
gym.importlib.util.find_spec = lambda name: None  # also where pycosat is installed
gym.provide_pycosat()
import reasoning_gym
puzzle = reasoning_gym.create_dataset("zebra_puzzles", seed=3, size=1, num_people=2, num_characteristics=2)[0]
print(puzzle["answer"])
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip().isalpha(), done.stderr


# labels, before anything heavy starts


@pytest.fixture
def labels(tmp_path, monkeypatch, gym_grader):
    """For `check`: the pool of these tests, and a cache of data sets for each."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    stays = SimpleNamespace(ask=gym_grader.ask, close=lambda: None)
    monkeypatch.setattr(pool_module, "Pool", lambda **_: stays)


def rows(name: str, count: int = 2) -> list[dict]:
    data = gym.create(name, {"seed": 1})
    entries = [data[index] for index in range(count)]
    return [{"prompt": entry["question"], "entry": gym.encode(name, {"seed": 1}, entry)} for entry in entries]


def write(path: Path, rows: list[dict]) -> str:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def check(train: str, held_out: str | None = None, reward: str | None = gym_check.FILE) -> None:
    gym_check.check_labels(reward, {"--data.prompt_dataset": train, "--eval.dataset": held_out}, "entry")


def refused(*files: str) -> list[str]:
    with pytest.raises(UsageError) as error:
        check(*files)
    return str(error.value).splitlines()


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv"])
@pytest.mark.usefixtures("labels")
def test_a_mixture_in_files_of_any_format_passes(tmp_path, suffix):
    path = write(tmp_path / f"train{suffix}", rows("arc_agi") + rows("graph_color") + rows("countdown"))
    check(f"{path},me/on_the_hub", path)


@pytest.mark.usefixtures("labels")
def test_plain_answers_are_named_with_file_column_row_and_what_to_write(tmp_path):
    path = write(tmp_path / "plain.jsonl", [*rows("chain_sum", 1), *[{"prompt": "p", "entry": "32"}] * 9])
    problems = refused(write(tmp_path / "good.jsonl", rows("chain_sum")), path)
    assert problems[0].startswith(
        f"--eval.dataset {path}, column 'entry', row 2: '32' is not an entry of reasoning-gym, "
    )
    assert '{"name": "chain_sum", "settings"' in problems[0]
    assert problems[5:] == ["and 4 more rows like these", "docs/data.md says how rows for this reward are made"]


@pytest.mark.usefixtures("labels")
def test_numbers_instead_of_texts_are_named_too(tmp_path):
    problems = refused(write(tmp_path / "numbers.jsonl", [{"prompt": "p", "entry": 32}]))
    assert "row 1: 32 is not an entry of reasoning-gym" in problems[0]


@pytest.mark.usefixtures("labels")
def test_a_kind_whose_own_answer_gets_no_full_marks_is_refused_by_name(tmp_path):
    path = write(tmp_path / "train.jsonl", rows("chain_sum", 5) + rows("boxnet", 1))
    (problem, _) = refused(path)
    assert f"{path}, column 'entry', row 6: boxnet: reasoning-gym gives no right answer" in problem


@pytest.mark.usefixtures("labels")
def test_other_rewards_are_left_alone(tmp_path):
    path = write(tmp_path / "plain.jsonl", [{"prompt": "p", "entry": "32"}])
    for reward in (None, "reward.py", "http://host/r"):
        check(path, reward=reward)
