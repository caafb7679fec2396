"""`sft` refuses rows of which OpenRLHF would train on parts of answers, or on nothing, before the model is loaded."""

import json
from types import SimpleNamespace

import pytest
from commands import write_rows
from tiny_tokenizers import save

from openrlhf_ebpo import chat_template
from openrlhf_ebpo.cli import train_sft
from openrlhf_ebpo.command import nested
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.train.answer_pairs import pair_warnings
from openrlhf_ebpo.upstream.install import install

install()
TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<turn_end>{% endfor %}"
PLAIN = TURNS + "{% if add_generation_prompt %}<assistant>{% endif %}"
THINKS = (
    TURNS + "{% if add_generation_prompt %}<assistant>{% if thinking | default(true) %}<think>\n{% endif %}{% endif %}"
)
FORGETS = (  # earlier thoughts, as Qwen3's
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<turn_end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PAIR = {"q": "What is 6+6?", "a": "The sum is 12"}
CHAT = [{"role": "user", "content": "6+6?"}, {"role": "assistant", "content": "<think>6, 6</think>12"}]


@pytest.fixture
def check(tmp_path):
    """Checks rows with a tokenizer of this template, as the command does; returns warnings."""

    def run(rows, template=None, held_out=None, end="<eos>", **data) -> list[str]:
        values = {"dataset": str(write_rows(tmp_path / "pairs.jsonl", rows)), "dataset_split": "train"}
        values |= {"input_key": "q", "output_key": "a", "input_template": None, "max_len": 64, "max_samples": 10**6}
        values |= {"apply_chat_template": template is not None, "tokenizer_chat_template": None, "multiturn": False}
        values |= {"template_kwargs": None, "disable_fast_tokenizer": False}
        model = save(tmp_path / "model", begins=False, template=template, end=end, model_type="qwen3")
        args = nested({f"data.{name}": value for name, value in (values | data).items()})
        args.model = SimpleNamespace(model_name_or_path=model, pretrain_mode_enable=False)
        args.eval, args.use_ms = SimpleNamespace(dataset=held_out, split="train"), False
        chat_template.set_template_kwargs(args.data)
        return pair_warnings(args)

    return run


def refused(check, *args, **kwargs) -> str:
    with pytest.raises(UsageError) as error:
        check(*args, **kwargs)
    (line,) = str(error.value).splitlines()
    return line


def test_a_chat_that_does_not_begin_with_its_prompt_is_refused_by_its_row(check, tmp_path):
    line = refused(check, [PAIR], THINKS)
    for part in ("--data.dataset", "pairs.jsonl: row 1", "'<think>\\n'", "'The sum", "--data.template_kwargs"):
        assert part in line
    fine = {"q": "6+6?", "a": "<think>\nsix and six</think>12"}
    assert check([fine] * 3, THINKS) == []
    assert "row 3: with --data.apply_chat_template" in refused(check, [fine, fine, PAIR], THINKS)
    held_out = str(write_rows(tmp_path / "held_out.jsonl", [PAIR]))
    assert f"--eval.dataset {held_out}: row 1" in refused(check, [fine], THINKS, held_out=held_out)


def test_the_remedies_that_it_names_work(check):
    assert check([PAIR], THINKS, template_kwargs=["thinking=false"]) == []
    assert check([PAIR], THINKS, tokenizer_chat_template=PLAIN) == []
    assert check([PAIR], THINKS, apply_chat_template=False, input_template="Q: {}\nA: ") == []


def test_what_upstream_would_train_on_without_the_check(check, tmp_path):
    """The bug itself, in upstream's own class: it has taken a half of the answer."""
    from openrlhf.datasets.sft_dataset import preprocess_data
    from openrlhf.utils.utils import get_tokenizer

    tokenizer = get_tokenizer(save(tmp_path / "m", template=THINKS, model_type="qwen3"), None)
    _, answer = preprocess_data(PAIR, None, "q", "a", tokenizer.apply_chat_template)
    assert answer.startswith("is 12") or not answer.startswith("The sum")


def test_complete_chats_in_one_column(check):
    assert check([{"q": CHAT}], PLAIN, output_key=None) == []
    assert "row 1: with --data.apply_chat_template" in refused(check, [{"q": CHAT}], THINKS, output_key=None)


def test_turns_that_are_rendered_otherwise_later_are_refused(check):
    rows, long = [{"q": CHAT}, {"q": CHAT + CHAT}], {"output_key": None, "multiturn": True, "max_len": 400}
    assert check(rows, PLAIN, **long) == []
    line = refused(check, rows, FORGETS, **long)
    assert "row 2: with --data.multiturn the chat template renders the first 2 turns otherwise" in line
    assert check(rows[:1], FORGETS, **long) == []
    assert "row 1: with --data.apply_chat" in refused(check, rows, THINKS, **long)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"multiturn": True, "apply_chat_template": True}, "--data.output_key a: with --data.multiturn"),
        ({"output_key": None}, "--data.output_key is missing"),
        ({"apply_chat_template": True}, "--data.apply_chat_template is given, and its tokenizer has no chat template"),
        ({"template_kwargs": ["x=1"]}, "--data.template_kwargs x: no chat template is used"),
        ({"input_key": "n"}, "row 1: column 'n' (--data.input_key) holds a int"),
        ({"output_key": "n"}, "row 1: column 'n' (--data.output_key) holds a int"),
        ({"max_len": 14}, "OpenRLHF would train on no row"),
    ],
)
def test_flags_and_rows_that_upstream_fails_on(data, said, check):
    assert said in refused(check, [{**PAIR, "n": 12}], **data)


def test_a_tokenizer_without_an_end_token_is_refused(check):
    assert "its tokenizer has no end token" in refused(check, [PAIR], end=None)


def test_rows_that_are_left_out_and_answers_that_are_cut_are_counted(check):
    rows = [PAIR, {**PAIR, "q": "1" * 70}, {**PAIR, "a": "2" * 70}, {**PAIR, "a": ""}]
    left_out, cut = check(rows)
    assert "2 of 4 rows are left out" in left_out and "1 of 4 answers are cut" in cut and "has 82 tokens" in cut


def test_the_command_ends_with_it_before_the_model_is_loaded(tmp_path, monkeypatch):
    model = save(tmp_path / "model", template=THINKS, model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    rows = write_rows(tmp_path / "pairs.jsonl", [PAIR])
    monkeypatch.setattr(train_sft.preflight.InputFiles, "check", lambda self: None)  # the model has no weights
    monkeypatch.setenv("RANK", "0")
    argv = ["--model.model_name_or_path", model, "--data.dataset", str(rows), "--data.input_key", "q"]
    argv += ["--data.output_key", "a", "--data.apply_chat_template", "--ckpt.output_dir", str(tmp_path / "out")]
    monkeypatch.setattr(train_sft.UpstreamMain, "train", lambda *_: pytest.fail("it trains"))
    with pytest.raises(SystemExit, match=r"row 1: with --data\.apply_chat_template"):
        train_sft.main(argv)
    assert json.loads(rows.read_text()) == PAIR and not (tmp_path / "out").exists()
