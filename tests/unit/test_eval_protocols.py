"""Protocols: their settings, names and refusals; the prompts they ask with."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_ebpo.chat_template import parse_kwargs
from openrlhf_ebpo.data.questions import DAPO_TEMPLATE
from openrlhf_ebpo.data.training_prompts import instruction_of, recorded_instruction
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.eval import protocols
from openrlhf_ebpo.eval.prompts import prompt_form, run_of, training_form, with_kwargs
from openrlhf_ebpo.eval.protocols import PROTOCOLS, override

DEFAULT, GREEDY = (PROTOCOLS[name] for name in ("default", "greedy"))


def test_the_named_protocols_are_what_they_say():
    assert (DEFAULT.n, DEFAULT.temperature, DEFAULT.top_p, DEFAULT.max_new_tokens) == (32, 1.0, 1.0, 20_480)
    assert (DEFAULT.template, DEFAULT.chat_template, DEFAULT.scorer) == ("training", None, "math-verify")
    assert (GREEDY.n, GREEDY.temperature) == (1, 0.0)
    for protocol in PROTOCOLS.values():
        protocols.check_protocol(protocol)
        protocols.check_scorer(protocol)


def test_fingerprints_are_pinned_to_the_version():
    """A changed setting of a named protocol needs a new version: old results are of another protocol then."""
    assert {name: (protocol.version, protocol.fingerprint()) for name, protocol in PROTOCOLS.items()} == {
        "default": (1, "8192b69284f6"),
        "greedy": (1, "51907294af9e"),
    }


@pytest.mark.parametrize(
    ("base", "changes", "name"),
    [
        (DEFAULT, {"n": 8}, "default+n=8"),
        (DEFAULT, {"n": None, "temperature": None}, "default"),
        (DEFAULT, {"n": 32}, "default"),
        (DEFAULT, {"temperature": 0.6, "n": 8}, "default+n=8,temperature=0.6"),
        (GREEDY, {"n": 2, "temperature": 0.5}, "greedy+n=2,temperature=0.5"),
        (DEFAULT, {"template": "boxed", "chat_template": True}, "default+template=boxed,chat_template=True"),
        (override(DEFAULT, n=8), {"n": 32}, "default"),
        (override(DEFAULT, n=8), {"top_p": 0.9}, "default+n=8,top_p=0.9"),
        (DEFAULT, {"top_k": 20, "min_p": 0.05}, "default+top_k=20,min_p=0.05"),
        (
            DEFAULT,
            {"template_kwargs": (("enable_thinking", "false"),)},
            "default+template_kwargs=enable_thinking:false",
        ),
        (DEFAULT, {"stop": (), "template_kwargs": (), "top_k": -1, "min_p": 0.0}, "default"),
    ],
)
def test_a_changed_setting_shows_in_the_name(base, changes, name):
    changed = override(base, **changes)
    assert changed.name == name
    assert (changed.fingerprint() == DEFAULT.fingerprint()) == (name == "default")


@pytest.mark.parametrize(
    "changes",
    [{"stop": ("\n\n", "/../x")}, {"stop": ("a-b",)}, {"template_kwargs": (("effort", '"low/../high"'),)}],
    ids=["texts", "a text", "an argument"],
)
def test_custom_templates_are_not_in_the_folder_name(changes):
    named = override(DEFAULT, **changes).name
    assert re.fullmatch(r"default\+\w+=text-[0-9a-f]{8}", named)
    assert override(DEFAULT, stop=("a", "b")).name != override(DEFAULT, stop=("a-b",)).name


def test_optional_settings_are_recorded_where_they_are_used():
    assert not set(protocols.OPTIONAL) & set(DEFAULT.settings())
    used = override(DEFAULT, stop=("\n\n",), template_kwargs=(("enable_thinking", "false"),), top_k=5, min_p=0.1)
    kept = json.loads(json.dumps(used.record()))
    assert (kept["stop"], kept["template_kwargs"], kept["top_k"], kept["min_p"]) == (
        ["\n\n"],
        {"enable_thinking": False},
        5,
        0.1,
    )
    for part in ("top_k ", "min_p ", '["\\n\\n"]', '{"enable_thinking": false}'):
        assert part in used.describe()
    values = [(("thinking", text),) for text in ("false", "0", "0.0")]
    assert len({override(DEFAULT, template_kwargs=value).fingerprint() for value in values}) == 3


def test_a_template_of_ones_own_is_named_by_its_hash():
    one, other = (override(DEFAULT, template=text).name for text in ("Q: {question}\nA:", "Q: {question}"))
    assert one != other
    assert one.startswith("default+template=text-") and "{" not in one and "\n" not in one


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "--n 0: must be at least 1"),
        ({"temperature": -1.0}, "--temperature -1.0"),
        ({"temperature": float("nan")}, "--temperature nan"),
        ({"temperature": 0.005}, "--temperature 0.005: must be 0 (greedy), or from 0.01, the least that vLLM samples"),
        ({"temperature": 0.0}, "the same response 32 times; use --n 1"),
        ({"top_p": 0.0}, "--top_p 0.0"),
        ({"max_new_tokens": 0}, "--max_new_tokens 0"),
        ({"top_k": 0}, "--top_k 0: must be at least 1, or -1"),
        ({"min_p": 1.5}, "--min_p 1.5"),
        ({"min_p": float("nan")}, "--min_p nan"),
        ({"stop": ("\n", "")}, "--stop '': an empty text would end every response"),
        ({"max_model_len": 4096}, "leaves no room for a prompt"),
        ({"template": "Solve it."}, "write raw, dapo, boxed, training, or a text with {question} in it"),
    ],
)
def test_settings_that_make_no_sense(changes, message):
    with pytest.raises(UsageError) as error:
        override(DEFAULT, **changes)
    assert message in str(error.value)


def test_describe_prints_every_setting():
    text = DEFAULT.describe()
    for part in ("default, version 1", DEFAULT.fingerprint(), "20480", "last Answer: line"):
        assert part in text
    assert "as the model was trained" in DEFAULT.describe() and "what the longest prompt needs" in DEFAULT.describe()
    assert all(f"  {name} " in text for name, value in DEFAULT.settings().items() if name != "version" and value != {})


def test_another_version_of_the_scorer_is_refused():
    with pytest.raises(UsageError, match=r"0\.8\.0, .*0\.9\.0"):
        protocols.check_scorer(override(DEFAULT, scorer_version="0.8.0"))


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        (["enable_thinking=false"], (("enable_thinking", "false"),)),
        (["b=1", 'a={"y":1, "x":"="}'], (("a", '{"x": "=", "y": 1}'), ("b", "1"))),
    ],
)
def test_template_arguments_are_json(pairs, found):
    assert parse_kwargs(pairs) == found


@pytest.mark.parametrize(
    "pairs",
    [
        *(["enable_thinking"], ["enable_thinking=False"], ["=1"], ["a b=1"], ["x=NaN"], ["x=" + "[" * 9999]),
        *(["x=1", "x=2"], ["tokenize=true"]),
    ],
)
def test_invalid_template_arguments(pairs):
    with pytest.raises(UsageError, match=r"--template_kwargs.* (write NAME=VALUE|x is given twice|not for you to set)"):
        parse_kwargs(pairs)


def test_template_arguments_need_a_chat_template():
    given = (("enable_thinking", "false"),)
    assert with_kwargs(prompt_form("raw", True), given, None).given() == {"enable_thinking": False}
    with pytest.raises(UsageError, match="--template_kwargs enable_thinking: no chat template is used"):
        with_kwargs(prompt_form("raw", False), given, None)


# Prompts.


def write_run(folder: Path, dataset: Path, **data) -> Path:
    folder.mkdir(parents=True)
    args = {
        "data": {"prompt_dataset": str(dataset), "input_key": "prompt", **data},
        "ckpt": {"output_dir": "elsewhere"},
    }
    run = {"schema": 1, "args": args, "instruction": recorded_instruction(args["data"])}
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def training_rows(template: str, system: str | None = None) -> list[dict]:
    questions = [f"made up {i}" for i in range(20)]
    shown = [template.replace("{question}", question) for question in questions]
    if system is not None:
        shown = [[{"role": "system", "content": system}, {"role": "user", "content": text}] for text in shown]
    return [{"prompt": text, "question": question} for text, question in zip(shown, questions, strict=True)]


@pytest.mark.parametrize(
    ("template", "system"),
    [(DAPO_TEMPLATE, None), ("{question}", None), ("Q: {question}\nA:", None), ("{question}!", "Be")],
)
def test_the_training_template_is_recorded_and_outlives_the_training_set(tmp_path, template, system):
    dataset = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist(training_rows(template, system)), dataset)
    run = write_run(tmp_path / "run", dataset, apply_chat_template=True)
    dataset.unlink()
    form = training_form(run)
    assert (form.template, form.system, form.chat_template, form.input_template) == (template, system, True, None)
    assert str(run) in form.source


def test_an_instruction_like_dapos_is_told_without_a_question_column():
    rows = [{"prompt": DAPO_TEMPLATE.replace("{question}", f"made up {i}")} for i in range(9)]
    assert instruction_of(rows, "prompt", "x") == (DAPO_TEMPLATE, None)
    assert instruction_of([{"prompt": "made up"}], "prompt", "x") == ("{question}", None)


def test_prompts_without_a_common_instruction_are_refused():
    rows = training_rows("{question}") + training_rows("Q: {question}")
    for found in (rows, [], [{"other": 1}], [{"prompt": " "}]):
        with pytest.raises(UsageError, match=r"x: its prompts .* do not have one instruction in common"):
            instruction_of(found, "prompt", "x")
    few = training_rows("{question}") + training_rows("Q: {question}")[:1]  # as where a question is "2"
    assert instruction_of(few, "prompt", "x") == ("{question}", None)


def test_a_run_without_a_common_instruction_is_named(tmp_path):
    run = write_run(tmp_path / "run", tmp_path / "train.parquet")
    with pytest.raises(
        UsageError, match=r"run.json has no instruction that all training prompts share.*--template dapo"
    ):
        training_form(run)
    with pytest.raises(ReportedError, match=r"--run_dir .*run\.json"):
        training_form(tmp_path)


def test_the_form_of_a_protocol(tmp_path):
    dataset = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist(training_rows("Q: {question}")), dataset)
    run = write_run(tmp_path / "run", dataset, apply_chat_template=True)
    assert prompt_form("training", None, run).template == "Q: {question}"
    assert prompt_form("training", False, run).chat_template is False
    assert prompt_form("dapo", None, run).chat_template is True
    assert prompt_form("> {question}", True).template == "> {question}"
    for template, missing in (("training", "prompt template"), ("dapo", "use of a chat template")):
        with pytest.raises(
            UsageError, match=f"the {missing} in training is not known for this model: give its --run_dir"
        ):
            prompt_form(template, None)
    with pytest.raises(UsageError, match="write raw, dapo"):
        prompt_form("Solve.", True)


def test_a_model_is_asked_with_the_template_arguments_that_it_was_trained_with(tmp_path):
    pq.write_table(pa.Table.from_pylist(training_rows("Q: {question}")), tmp_path / "x.parquet")
    form = {"dataset": tmp_path / "x.parquet", "apply_chat_template": True}
    run = write_run(tmp_path / "run", **form, template_kwargs=["thinking=false"])
    assert with_kwargs(prompt_form("dapo", None, run), (), run).given() == {"thinking": False}
    assert with_kwargs(prompt_form("dapo", None, run), (("effort", "1"),), run).given() == {"effort": 1}
    assert with_kwargs(prompt_form("dapo", False, run), (), run).given() == {}
    other = write_run(tmp_path / "other", **form, template_kwargs=None)
    assert with_kwargs(prompt_form("dapo", None, other), (), other).template_kwargs is None


def test_the_run_of_an_exported_model(tmp_path):
    run = write_run(tmp_path / "job" / "run", tmp_path / "train.parquet")
    model = tmp_path / "job" / "checkpoints" / "global_step5_hf"
    model.mkdir(parents=True)
    assert run_of(str(model)) is None  # the run does not know it
    (run / "checkpoints.jsonl").write_text(json.dumps({"step": 5, "model": str(model)}) + "\n")
    assert run_of(str(model)) == run
    assert run_of("Qwen/Qwen3-8B") is None


@pytest.mark.parametrize("config", ["config.json", "adapter_config.json"])
def test_a_pulled_model_is_asked_as_it_was_trained_on_a_machine_that_has_nothing_else(tmp_path, config):
    pq.write_table(pa.Table.from_pylist(training_rows("Q: {question}", "Be")), tmp_path / "x.parquet")
    how = {"apply_chat_template": True, "template_kwargs": ["thinking=false"]}
    pulled = write_run(tmp_path / "pulled", tmp_path / "x.parquet", **how)
    (tmp_path / "x.parquet").unlink()
    assert run_of(str(pulled)) is None, "a run directory is not a model"
    (pulled / config).write_text("{}")
    assert run_of(str(pulled)) == pulled
    form = with_kwargs(prompt_form("training", None, run_of(str(pulled))), (), pulled)
    assert (form.template, form.system, form.chat_template, form.given()) == (
        "Q: {question}",
        "Be",
        True,
        {"thinking": False},
    )
