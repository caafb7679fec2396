"""Every kind of task of reasoning-gym, scored as training does: the right answer earns 1, or the kind is refused."""

import json
import re
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import pytest
from patience import seconds

from openrlhf_ebpo.data import gym as data_gym
from openrlhf_ebpo.data.table import read_table
from openrlhf_ebpo.eval.grader import Grader
from openrlhf_ebpo.eval.tasks import REASONING_GYM, Rules
from openrlhf_ebpo.rewards import gym
from openrlhf_ebpo.rewards.grading import GoldError
from openrlhf_ebpo.rewards.guard import RewardError
from openrlhf_ebpo.rewards.reasoning_gym import marks_of, oracle_problem, reward_func

ITEMS = 2
CANNOT_BE_MADE = {"composite": "Must specify at least one dataset"}  # a mixture, that has to be told of what
REFUSED = {
    **dict.fromkeys(("boxnet", "rush_hour"), "gives no right answer, with which its scorer could be checked"),
    "game_of_life_halting": "accepts any answer",  # it compares the truth of two texts that are not empty
}
ALOUD = "<think>Is it <answer>nothing</answer>? \\boxed{Nothing}?</think> Let me see.\n"


@pytest.fixture(scope="module", autouse=True)
def pool(gym_grader):
    return gym_grader


def entries(name: str, **settings) -> list[str]:
    settings = {"seed": 20_602, "size": ITEMS, **settings}
    data = gym.create(name, settings)
    return [gym.encode(name, settings, data[index]) for index in range(settings["size"])]


def rewards(prompt: str, responses: list[str], label: str):
    return reward_func([prompt + r for r in responses], [prompt] * len(responses), [label] * len(responses))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> list[dict]:
    """The rows of a file with all kinds."""
    output = tmp_path_factory.mktemp("gym") / "mixture.jsonl"
    kinds = [f'{name}:{{"size": {ITEMS}}}' for name in sorted(gym.kinds()) if name not in {**CANNOT_BE_MADE, **REFUSED}]
    data_gym.main([*kinds, "--output", str(output)])
    return read_table(output).to_pylist()


def test_every_kind_is_written_and_read_and_scored_alike_by_training_and_evaluation(mixture):
    """Its own answer passes, bare as well as in tags behind thoughts; another one does not."""
    found = Counter(row["datasource"] for row in mixture)
    assert len(found) == 102 and set(found.values()) == {ITEMS}
    with Grader(workers=1) as grader:
        for row in mixture:
            entry = gym.decode(row["label"])["entry"]
            right = gym.oracle(entry)
            responses = [
                f"  {right}\n<|im_end|>",
                *(f"{ALOUD}<answer>{each}</answer>" for each in (right, "Who knows?")),
            ]
            result = rewards(row["prompt"] + "\n", responses, row["label"])
            assert result["rewards"].tolist() == [1, 1, 0], row["datasource"]
            rules = Rules(REASONING_GYM, entry=row["label"])
            graded = [grader.grade(gym.gold(entry), rules, response) for response in responses]
            assert [each["correct"] for each in graded] == [True, True, False], row["datasource"]


@pytest.mark.parametrize("name", CANNOT_BE_MADE)
def test_a_kind_that_cannot_be_made_says_why(name):
    with pytest.raises(gym.EntryError, match=CANNOT_BE_MADE[name]):
        entries(name)


@pytest.mark.parametrize("name", REFUSED)
def test_a_kind_whose_scorer_cannot_tell_right_from_wrong_is_refused(pool, name):
    for label in entries(name):
        problem = oracle_problem(pool, label)
        assert problem.startswith(f"{name}: ") and REFUSED[name] in problem


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("  42\n<|im_end|>", "42"),
        ("42<end_of_turn>", "42"),
        ("42</s>", "42"),
        ("It is <answer>1</answer>, no, <answer> 42 </answer>!", "42"),
        ("So <answer>42", "42"),  # a stop string takes the end away
        ("The <answer>1</answer> was <answer>42</answer> and <answer>", "42"),
        ("<answer>The sum is \\boxed{42}</answer>", "42"),
        ("<answer>1 2\n3 4</answer>", "1 2\n3 4"),
        ("So it is \\boxed{42}.", "42"),
        ("Thus\n**Answer:** 42", "42"),
        ("<think>7? <answer>7</answer></think>\n\n42", "42"),
        ("7? \\boxed{7}</think>42", "42"),  # the prompt has opened it
        ("<think>7? <answer>7</answer>", ""),  # it was cut off
        ("<answer></answer>", ""),
        ("</answer> 42", "</answer> 42"),
        ("", ""),
    ],
)
def test_where_the_answer_of_a_response_is(response, answer):
    assert gym.answer_of(response) == answer


def test_responses_that_mark_no_answer_are_counted(pool):
    (label,) = entries("chain_sum", size=1)
    right = gym.readable(label)
    result = rewards("Add\n", [right, f"It is {right}", f"<answer>{right}</answer>", "<think>" + right], label)
    assert result["rewards"].tolist() == [1, 0, 1, 0]
    assert result["extra_logs"]["reasoning_gym_unmarked"].tolist() == [1, 1, 0, 1]


@pytest.mark.timeout(seconds(20))  # milliseconds; squares of such lengths are hours
@pytest.mark.parametrize(
    "hostile", ["<answer>" * 200_000, "<think>" * 300_000, "\\boxed{" * 200_000, "</answer>" * 9**5]
)
def test_an_answer_is_found_in_time_linear_in_the_response(hostile):
    assert gym.answer_of("<answer>7</answer>") == "7" and gym.answer_of(hostile + "<answer>7</answer>") in ("7", "")


def test_only_full_marks_are_a_success_and_special_tokens_are_no_part_of_the_answer():
    (label,) = entries("spell_backward", size=1, min_word_len=3, max_word_len=3)
    right = gym.readable(label)
    wrong = right[1] + right[0] + right[2]
    assert wrong != right
    result = rewards(
        "Spell\n", [f"{right} <|im_end|>", f"{right}<|im_end|>", f"{wrong}<|im_end|>", "<|im_end|>"], label
    )
    assert result["rewards"].tolist() == [1, 1, 0, 0]
    assert 0 < result["extra_logs"]["reasoning_gym_score"][2] < 1
    assert result["extra_logs"]["reasoning_gym_timeout"].tolist() == [0, 0, 0, 0]


def test_each_row_of_a_mixture_is_scored_by_its_own_kind(pool):
    labels = [entries(name, size=1)[0] for name in ("chain_sum", "countdown", "simple_integration")]
    answers = [gym.oracle(gym.decode(label)["entry"]) for label in labels]
    assert [marks_of(pool, label, answer) for label, answer in zip(labels, answers, strict=True)] == [1, 1, 1]
    assert all(marks_of(pool, labels[0], answer) < 1 for answer in answers[1:])


@pytest.mark.parametrize(
    ("name", "settings", "wrong"),
    [
        ("coin_flip", {}, ["0", "0.", "1", "0.0"]),
        ("complex_arithmetic", {}, ["nan", "nan + nani", "NaN", "(nan)", "inf", "infi"]),
        ("puzzle24", {}, ["6 + 6 + 6 + 6", "24", "nan"]),
    ],
)
def test_one_answer_to_all_tasks_is_paid_by_the_scorer_and_not_by_us(pool, name, settings, wrong):
    labels = entries(name, size=8, **settings)
    for label in labels:
        entry = gym.decode(label)["entry"]
        assert marks_of(pool, label, gym.oracle(entry)) == 1 and oracle_problem(pool, label) is None
        if name == "coin_flip":
            assert marks_of(pool, label, "{numerator}/{denominator}".format(**entry["metadata"]["rational"])) == 1
    for each in wrong:
        paid = sum(marks_of(pool, label, each) >= 1 for label in labels)
        assert paid <= sum(gym.number(gym.readable(label)) == gym.number(each) for label in labels), each


def test_a_mixture_of_reasoning_gyms_own_pays_no_more(pool):
    kinds = [{"name": "coin_flip", "weight": 1, "config": {}}]
    for label in entries("composite", size=4, datasets=kinds):
        assert marks_of(pool, label, gym.readable(label)) == 1 and oracle_problem(pool, label) is None
        assert float(gym.readable(label)) == 0 or marks_of(pool, label, "0") < 1


def test_a_beginning_of_the_right_number_is_not_the_number(pool):
    for label in entries("coin_flip", size=8):
        right = gym.readable(label)
        for wrong in (right[:1], right[:3], right + "9" if "." not in right else right[:2]):
            if abs(float(wrong) - float(right)) > 1e-3:
                assert marks_of(pool, label, wrong) < 1


@pytest.mark.parametrize(
    ("text", "is_none"),
    [
        ("nan", True),
        ("-NaN + nani", True),
        ("[inf, 3]", True),
        ("Infinity", True),
        ("(1, nan)", True),
        ("Nan has 3", False),
        ("Infinite", False),
        ("3 + 4i", False),
        ("", False),
        ("finance", False),
    ],
)
def test_what_reads_as_no_number(text, is_none):
    assert gym.reads_as_no_number(text) is is_none


def test_an_answer_with_nan_is_right_where_the_gold_has_it(pool):
    entry = {"name": "chain_sum", "settings": {}, "entry": {"question": "q", "answer": "nan", "metadata": {}}}
    assert marks_of(pool, json.dumps(entry | {"name": "letter_jumble"}), "nan") == 1


@pytest.mark.timeout(seconds(20))  # microseconds; a pattern that tries all ways takes for ever
@pytest.mark.parametrize("hostile", ["inf" * 300, "infi" * 240 + "x", "i" * 999 + "x", "nan " * 240 + "!"])
def test_whether_it_is_a_number_is_seen_at_once(hostile):
    assert gym.reads_as_no_number(hostile) is (hostile == "inf" * 300)


@pytest.mark.parametrize("paid", ["Nobody knows.", "", "nan", "inf", "0", "1", "6"])
def test_a_scorer_that_pays_for_a_wrong_answer_is_found_out(paid):
    label = entries("chain_sum", size=1, min_terms=2, max_terms=2, min_digits=2, max_digits=2)[0]
    kept = gym.decode(label)
    kept["entry"]["answer"] = "65.62"
    label = gym.encode(**kept)
    scorer = SimpleNamespace(ask=lambda _label, answer: float(answer in ("65.62", paid)))
    assert f"accepts any answer, such as {paid!r}, where '65.62' is right" in oracle_problem(scorer, label)


@pytest.mark.parametrize(("right", "left_out"), [("0", {"0"}), ("1.0", {"1"}), ("NaN", {"nan"}), ("7 days", {"7"})])
def test_what_may_be_right_is_not_tried_as_wrong(right, left_out):
    everything = {gym.NONSENSE, "", "nan", "inf", "0", "1", right[:1]}
    assert set(gym.wrong_answers(right)) == everything - left_out


def test_an_answer_that_the_scorer_cannot_read_is_wrong_and_nothing_was_cut_off(pool, caplog):
    (label,) = entries("prime_factorization", size=1)
    result = rewards("Factor\n", ["I do not know.", gym.readable(label)], label)
    assert result["rewards"].tolist() == [0, 1]
    assert result["extra_logs"]["reasoning_gym_timeout"].tolist() == [0, 0] and not caplog.records


def test_a_prompt_that_is_not_found_is_told_what_helps_this_reward():
    (label,) = entries("chain_sum", size=1)
    with pytest.raises(RewardError, match="the prompt is not found in the decoded sequence") as error:
        reward_func(["something else 5"], ["A prompt"], [label])
    assert "data gym --template" in str(error.value) and "agent_func_path" not in str(error.value)


def test_another_right_answer_than_the_oracles_earns_1_too(pool):
    (label,) = entries("simple_integration", size=1)
    assert marks_of(pool, label, f"7 + {gym.readable(label).removesuffix(' + C')} + C") == 1


def test_an_answer_that_would_take_for_ever_is_wrong_and_holds_nothing_up(pool):
    (label,) = entries("countdown", size=1)
    result = rewards("Count\n", ["9**9**9**9"], label)
    assert result["rewards"].tolist() == [0] and result["extra_logs"]["reasoning_gym_timeout"].tolist() == [1]
    assert marks_of(pool, label, gym.readable(label)) == 1


def test_a_prompt_that_was_cut_off_at_its_front_does_not_cost_the_reward():
    (label,) = entries("chain_sum", size=1)
    prompt = "A beginning that is cut off. " + gym.decode(label)["entry"]["question"] + " " + "Think. " * 8
    query = prompt[10:] + gym.readable(label)
    assert reward_func([query], [prompt], [label])["rewards"].tolist() == [1]


@pytest.mark.parametrize(
    "label",
    [
        "32",
        32,
        None,
        "",
        "{}",
        "[1]",
        '{"name": "chain_sum"}',
        '{"name": 1, "settings": {}, "entry": {"question": ""}}',
    ],
)
def test_a_label_that_is_no_entry_is_a_failed_reward_and_shown_as_it_is(pool, label):
    with pytest.raises(GoldError, match="is not an entry of reasoning-gym"):
        reward_func(["p 32"], ["p"], [label])
    assert "is not an entry of reasoning-gym" in oracle_problem(pool, label)
    assert gym.readable(label) == label


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"name": "chain_sums"}, r"chain_sums: no such data set. Did you mean chain_sum\? There are ab, "),
        ({"settings": {"terms": 3}}, "chain_sum: .*Its settings are min_terms, max_terms"),
        ({"entry": {"question": "1 + 1 = ?"}}, "chain_sum: reasoning-gym gives no right answer"),
        ({"name": "sudoku"}, "sudoku: reasoning-gym's own answer '2' gets 0, not 1"),
        (
            {"name": "fraction_simplification"},
            "fraction_simplification: reasoning-gym's own answer '2' gets 0.01, not 1",
        ),
    ],
)
def test_an_entry_that_cannot_be_trained_on_says_why(pool, change, shown):
    good = {"name": "chain_sum", "settings": {}, "entry": {"question": "1 + 1 = ?", "answer": "2", "metadata": {}}}
    assert oracle_problem(pool, json.dumps(good)) is None
    assert re.search(shown, oracle_problem(pool, json.dumps({**good, **change})))


def test_what_people_see_of_a_label_is_the_answer():
    assert gym.readable(entries("spell_backward", size=1)[0]).isalpha()
    assert gym.readable(entries("propositional_logic", size=1)[0]) == gym.ANY
    for label in ("42", "", "{x}", '{"name": "me"}', 7, None, ["a"]):
        assert gym.readable(label) == label


def test_an_entry_survives_with_its_tuples_and_keys():
    entry = {
        "question": "q",
        "answer": "a",
        "metadata": {"t": ((1, 2), [3, (4,)]), "k": {0: "x", (1, 2): ()}, "()": {"{}": 1}},
    }
    kept = gym.decode(gym.encode("name", {"size": 3}, entry))
    assert kept == {"name": "name", "settings": {"size": 3}, "entry": entry}
    assert isinstance(kept["entry"]["metadata"]["t"][1][1], tuple)


@pytest.mark.parametrize("value", [Fraction(1, 2), {1, 2}, object()], ids=str)
def test_what_json_cannot_hold_is_refused_and_not_made_a_text(value):
    with pytest.raises(gym.EntryError, match=r"an entry of odd cannot be saved: .* is not JSON serializable"):
        gym.encode("odd", {}, {"question": "q", "answer": "a", "metadata": {"value": value}})
