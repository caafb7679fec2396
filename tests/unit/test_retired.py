"""A withdrawn command or flag answers with one line that says what to do instead."""

import pytest

from openrlhf_ebpo import cli
from openrlhf_ebpo.retired import RETIRED

TYPED = {"explain": ["explain", "no", "token"]}  # a command that has the withdrawn word


@pytest.mark.parametrize("name", RETIRED)
def test_a_withdrawn_name_answers_with_its_advice(name, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(TYPED.get(name) or ["train", name, "x"])
    text = capsys.readouterr().err or str(ended.value.code)
    lines = [line for line in text.splitlines() if f"{name} was withdrawn: {RETIRED[name]}" in line]
    assert ended.value.code and len(lines) == 1 and len(text.splitlines()) == 1, text
