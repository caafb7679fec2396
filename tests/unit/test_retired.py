"""A withdrawn command or flag answers with one line that says what to do instead."""

import pytest

from openrlhf_ebpo import cli
from openrlhf_ebpo.retired import RETIRED

EVAL = ["eval", "--model", "m", "--output_dir", "out", "--tasks", "aime24"]
TYPED = {  # a command that has the withdrawn word
    "explain": ["explain", "no", "token"],
    "openai:": [*EVAL, "--model", "openai:http://me:secret@host/v1#m"],
    **{name: [*EVAL, name, "3"] for name in ("--api_key_env", "--concurrency", "--request_timeout", "--retries")},
}


@pytest.mark.parametrize("name", RETIRED)
def test_a_withdrawn_name_answers_with_its_advice(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(TYPED.get(name) or ["train", name, "x"])
    text = capsys.readouterr().err or str(ended.value.code)
    lines = [line for line in text.splitlines() if f"{name} was withdrawn: {RETIRED[name]}" in line]
    assert ended.value.code and len(lines) == 1 and len(text.splitlines()) == 1, text
    assert "secret" not in text
