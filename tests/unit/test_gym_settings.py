"""Settings of reasoning-gym's kinds are JSON, checked by the types of their configurations."""

from __future__ import annotations

import datetime
import json

import pytest

from openrlhf_ebpo.data.gym import defaults
from openrlhf_ebpo.rewards import gym


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
