"""Settings of reasoning-gym's kinds are read by the types of their configurations, and written as they are read."""

from __future__ import annotations

import datetime

import pytest

from openrlhf_ebpo.data.gym import defaults
from openrlhf_ebpo.rewards import gym, gym_settings


def config(spec: str):
    name, settings = gym.parse_spec(spec)
    return gym.create(name, {"seed": 1, "size": 1, **settings}).config


def test_texts_are_split_at_commas_outside_of_brackets_and_quotes():
    assert gym_settings.split('size=3, x=["a,b",["c"]],y={"k":[1,2]},t="u,v" ,plain=z,') == {
        "size": "3",
        "x": '["a,b",["c"]]',
        "y": '{"k":[1,2]}',
        "t": '"u,v"',
        "plain": "z",
    }


@pytest.mark.parametrize("text", ["False", "false", "FALSE"])
def test_false_is_not_true(text):
    assert gym.parse_spec(f"chain_sum:allow_negation={text}")[1] == {"allow_negation": False}
    assert config(f"chain_sum:allow_negation={text}").allow_negation is False


def test_labels_of_before_with_pythons_spelling_are_read_too():
    assert gym.create("chain_sum", {"allow_negation": "False", "seed": 1}).config.allow_negation is False


def test_lists_in_lists_enumerations_dates_and_texts():
    assert config(
        "rearc:rng_difficulty_ranges=[[0,0.1],[0.1,0.3]],rng_difficulty_weights=[1,1]"
    ).rng_difficulty_ranges == [[0, 0.1], [0.1, 0.3]]
    assert config("word_sorting:transformation=uppercase").transformation.name == "UPPERCASE"
    assert config('aiw:task_types=["friends"],task_type_weights=[1]').task_types[0].value == "friends"
    made = config("time_intervals:min_date=2000-01-01,max_time=13:30")
    assert (made.min_date, made.max_time) == (datetime.date(2000, 1, 1), datetime.time(13, 30))
    assert config('arc_agi:board_format_opts={"col_delimiter":","}').board_format_opts.col_delimiter == ","
    assert config("figlet_font:static_word=42").static_word == "42"
    assert config("figlet_font:static_word=null").static_word is None


@pytest.mark.parametrize("name", sorted(gym.kinds()))
def test_what_the_list_prints_can_be_given_back(name):
    usual = defaults(gym.kinds()[name])
    _, given = gym.parse_spec(f"{name}:{gym_settings.as_text(usual)}")
    assert given == {key: gym_settings.plain(value) for key, value in usual.items()}
    fitted = gym_settings.fitting(gym.kinds()[name], given)
    assert {key: gym_settings.plain(value) for key, value in fitted.items()} == given


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("chain_sum:max_terms=4.5", "max_terms must be a whole number, not 4.5"),
        ("chain_sum:max_terms=four", "max_terms must be a whole number, not four"),
        ("chain_sum:max_terms=true", "max_terms must be a whole number, not true"),
        ("chain_sum:allow_negation=yes", "allow_negation must be true or false, not yes"),
        ("chain_sum:allow_negation=1", "allow_negation must be true or false, not 1"),
        ("binary_matrix:p_zero=NaN", "p_zero must be a number, not NaN"),
        (
            "word_sorting:transformation=loud",
            "transformation must be one of lowercase, uppercase, original, randomcase",
        ),
        ("time_intervals:min_date=2000", "min_date must be a date such as 2000-01-31, not 2000"),
        ("rearc:rng_difficulty_ranges=[[0,1,2]]", "rng_difficulty_ranges must be a list as in JSON"),
        ("countdown:operators=+", "operators must be a list as in JSON, not +"),
        ("countdown:operators=['+','-']", 'lists are written as ["+","-"], with double quotes'),
        ("countdown:operators=…", "operators must be a list as in JSON"),
        ("chain_sum:size=5,size=6", "size is given twice"),
        ("chain_sum:size=100000000000000000000", "size must be a whole number from 1 to 1,000,000, not 1000"),
        ("chain_sum:size=1e3", "size must be a whole number"),
        ("chain_sum:max_term=3", "there is no setting max_term. Did you mean max_terms?. Its settings are min_terms, "),
        ("CHAIN-SUM:size=3", "CHAIN-SUM: no such data set. Did you mean chain_sum?"),
        ("", "'' names no kind of tasks"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(spec, problem):
    with pytest.raises(gym.EntryError) as error:
        gym.parse_spec(spec)
    assert problem.replace("?.", "?") in str(error.value).replace("?.", "?") and len(str(error.value)) < 2500
