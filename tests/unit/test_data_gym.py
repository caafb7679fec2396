"""`data gym`: generated tasks, each tried, different from each other and from those held out."""

import json

import pytest
from commands import refused

from openrlhf_ebpo.checks import gym_check
from openrlhf_ebpo.data import gym as command
from openrlhf_ebpo.data.gym_tasks import shares
from openrlhf_ebpo.data.table import read_table
from openrlhf_ebpo.rewards import gym

pytestmark = pytest.mark.usefixtures("gym_grader")
SMALL = 'chain_sum:{"size": 20, "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}'  # 198 different questions


def seeded(kind: str, seed: int) -> str:
    return kind.replace("}", f', "seed": {seed}}}')


def written(path, *argv: str) -> list[dict]:
    command.main([*argv, "--output", str(path)])
    return read_table(path).to_pylist()


def test_a_mixture_is_written_as_the_other_steps_and_the_reward_read_it(tmp_path, capsys):
    output = tmp_path / "new" / "mix.parquet"
    rows = written(
        output, 'spell_backward:{"size": 6}', 'chain_sum:{"size": 4, "max_terms": 3, "seed": 7}', "--validation", "5"
    )
    held = read_table(tmp_path / "new" / "mix.validation.parquet").to_pylist()
    assert list(rows[0]) == ["id", "prompt", "label", "question", "datasource"]
    kinds = [row["datasource"] for row in rows]
    assert sorted(kinds) == ["chain_sum"] * 4 + ["spell_backward"] * 6 and kinds != sorted(kinds, reverse=True)
    assert sorted(row["datasource"] for row in held) == ["chain_sum"] * 2 + ["spell_backward"] * 3
    for row in rows + held:
        assert gym.decode(row["label"])["entry"]["question"] == row["question"]
        assert row["prompt"].startswith(row["question"] + "\n\n") and row["prompt"].endswith("</answer>.")
    assert (
        gym.decode(next(row["label"] for row in rows if row["datasource"] == "chain_sum"))["settings"]["max_terms"] == 3
    )
    gym_check.check_labels(gym_check.FILE, {"--data.prompt_dataset": str(output)}, "label")
    shown = capsys.readouterr().out
    assert "--reward.remote_url reasoning_gym --data.prompt_dataset" in shown and "mix.validation.parquet" in shown


def test_questions_are_different_and_what_is_held_out_is_not_trained_on(tmp_path, capsys):
    rows = written(tmp_path / "a.jsonl", seeded(SMALL, 1), seeded(SMALL, 5), "--validation", "40", "--template", "own")
    held = read_table(tmp_path / "a.validation.jsonl").to_pylist()
    questions = [row["question"] for row in rows + held]
    assert len(rows) == 40 and len(held) == 40 and len(set(questions)) == 80
    assert all(row["prompt"] == row["question"] for row in rows)
    facts = json.loads((tmp_path / "a.jsonl.report.json").read_text())["kinds"]
    assert all(each["repeats"] > 0 and each["draws"] == 40 + each["repeats"] for each in facts)


def test_the_same_command_gives_the_same_tasks_and_another_seed_others(tmp_path):
    first = written(tmp_path / "a.jsonl", SMALL)
    assert written(tmp_path / "b.jsonl", SMALL) == first
    assert written(tmp_path / "c.jsonl", SMALL, "--seed", "1000") != first


def test_a_kind_without_so_many_different_questions_says_how_many_it_has(tmp_path, capsys):
    message = refused(command.main, SMALL, "--validation", "400", "--output", str(tmp_path / "a.jsonl"))
    assert "420 different tasks are asked for (size=20, and 400 held out)" in message and "gave 198: " in message
    assert "other settings (min_terms, max_terms, " in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "kinds",
    [
        ('chain_sum:{"size": 130, "seed": 42}', 'chain_sum:{"size": 130, "seed": 43}'),
        ('leg_counting:{"size": 130, "max_animals": 10}', 'leg_counting:{"size": 130}'),
    ],
)
def test_a_kind_twice_draws_on_where_the_second_repeats_the_first(tmp_path, kinds):
    rows = written(tmp_path / "a.jsonl", *kinds)
    assert len(rows) == len({row["question"] for row in rows}) == 260


def test_a_kind_twice_has_no_more_questions_than_once(tmp_path, capsys):
    more = SMALL.replace('"size": 20', '"size": 190')
    message = refused(command.main, seeded(SMALL, 1), seeded(more, 1), "--output", str(tmp_path / "a.jsonl"))
    assert "190 different tasks are asked for" in message and "gave 17" in message  # of 199, 20 are in the first
    assert list(tmp_path.iterdir()) == []


def test_all_kinds_whose_own_answer_does_not_pass_are_refused_by_name(tmp_path, capsys):
    message = refused(command.main, "rush_hour", "chain_sum", "boxnet", "--output", str(tmp_path / "a.jsonl"))
    first, second = message.splitlines()
    assert "rush_hour: reasoning-gym gives no right answer" in first and "boxnet: " in second
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["chainsum"], "Did you mean chain_sum?"),
        (["chain_sum", "--seed", "-5"], "--seed is -5; give a whole number from 0 on"),
        (["chain_sum", "--validation", "1" + "0" * 20], "at most 1,000,000 tasks can be held out"),
        ([], "name a kind of tasks"),
        (["chain_sum", "--template", "dapo"], "--template 'dapo': write own, answer, chat, or a text"),
        (["chain_sum", "--system", "s"], "--system goes with --template chat"),
        (["chain_sum", "--output", "a.csv"], "--output a.csv: the name must end in .parquet or .jsonl"),
        (['string_manipulation:{"min_string_length": 9, "max_string_length": 2}'], "string_manipulation: "),
    ],
)
def test_what_cannot_be_meant_is_said(capsys, tmp_path, monkeypatch, argv, found):
    monkeypatch.chdir(tmp_path)
    message = refused(command.main, *(["--output", "a.jsonl"] if "--output" not in argv else []), *argv)
    assert found in message and message.startswith("error: ") and list(tmp_path.iterdir()) == []


def test_output_is_needed(capsys):
    assert "--output is missing" in refused(command.main, "chain_sum")


def test_what_is_there_is_recognised_and_not_replaced_without_force(tmp_path, capsys):
    output = str(tmp_path / "a.jsonl")
    command.main([SMALL, "--validation", "2", "--output", output])
    before = (tmp_path / "a.jsonl").stat().st_mtime_ns
    capsys.readouterr()
    command.main([SMALL, "--validation", "2", "--output", output])
    assert "done already" in capsys.readouterr().out and (tmp_path / "a.jsonl").stat().st_mtime_ns == before
    assert "validation is 2 there, 0 now" in refused(command.main, SMALL, "--output", output)
    command.main([SMALL, "--output", output, "--force"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl.report.json"]


def test_what_is_lost_is_made_again(tmp_path, capsys):
    output, beside = tmp_path / "a.jsonl", tmp_path / "a.validation.jsonl"
    argv = [SMALL, "--validation", "2", "--output", str(output)]
    command.main(argv)
    held = beside.read_text()
    beside.unlink()
    capsys.readouterr()
    command.main(argv)
    assert "done already" not in capsys.readouterr().out and beside.read_text() == held


def test_a_task_that_cannot_be_saved_is_left_out(tmp_path):
    rows = written(tmp_path / "a.jsonl", 'gsm_symbolic:{"size": 40, "seed": 777}')
    (facts,) = json.loads((tmp_path / "a.jsonl.report.json").read_text())["kinds"]
    assert len(rows) == 40 and facts["failed"] > 0


def test_a_validation_file_of_another_origin_is_not_replaced(tmp_path):
    (tmp_path / "a.validation.jsonl").write_text("mine")
    message = refused(command.main, SMALL, "--validation", "2", "--output", str(tmp_path / "a.jsonl"))
    assert "a.validation.jsonl is there" in message
    for _ in range(2):
        command.main([SMALL, "--output", str(tmp_path / "a.jsonl"), "--force"])
    assert (tmp_path / "a.validation.jsonl").read_text() == "mine"


def test_chat_messages(tmp_path):
    (row,) = written(tmp_path / "a.parquet", 'chain_sum:{"size": 1}', "--template", "chat", "--system", "Be brief.")
    system, user = row["prompt"]
    assert system == {"role": "system", "content": "Be brief."} and user["content"] == row["question"]


def test_shares_of_what_is_held_out():
    assert shares([3000, 1000, 1000], 100) == [60, 20, 20]
    assert sum(shares([1, 1, 1], 2)) == 2
    assert shares([1000, 10], 0.05) == [50, 0]


def test_the_list_names_every_kind_and_its_settings(capsys):
    command.main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(gym.kinds())
    command.main(["--list", "chain_sum"])
    name, settings = capsys.readouterr().out.split(maxsplit=1)
    assert name == "chain_sum" and json.loads(settings) == {
        "min_terms": 2,
        "max_terms": 6,
        "min_digits": 1,
        "max_digits": 4,
        "allow_negation": False,
    }
    assert "Did you mean chain_sum?" in refused(command.main, "--list", "chainsum")
