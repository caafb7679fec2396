"""`train` warns of model and prompts before Ray starts, and describes a sample of answers. No engine starts here."""

import sys
from types import SimpleNamespace

import pytest
from commands import write_rows
from tiny_tokenizers import CHAT, save

from openrlhf_ebpo.engines import engines
from openrlhf_ebpo.engines.engines import Sample
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
from openrlhf_ebpo.train import prompt_sets
from openrlhf_ebpo.train import sample as train_sample
from openrlhf_ebpo.train.flags import Command
from openrlhf_ebpo.upstream.engine_errors import EngineError
from openrlhf_ebpo.upstream.install import install
from openrlhf_ebpo.upstream.rendering import Prompt

install()  # before anything imports OpenRLHF's data sets: as the command does, and for the tests that come after these
ROWS = [{"q": f"{i} + {i} =", "a": str(2 * i)} for i in range(100)]


@pytest.fixture
def args(tmp_path):
    """Nested arguments, with changes to those of the data: args(ROWS, max_len=9)."""

    def build(rows=ROWS, new_tokens=8, model=None, name="train.jsonl", held_out=None, **data):
        path = write_rows(tmp_path / name, rows)
        values = {"input_key": "q", "label_key": "a", "input_template": None, "apply_chat_template": False}
        values |= {
            "max_samples": 10**8,
            "template_kwargs": None,
            "max_len": 40,
            "cluster_key": None,
            "prompt_split": "train",
            "prompt_dataset": str(path),
        }
        return SimpleNamespace(
            actor=SimpleNamespace(model_name_or_path=str(model or tmp_path / "model")),
            data=SimpleNamespace(**{**values, **data}),
            rollout=SimpleNamespace(max_new_tokens=new_tokens, temperature=1.0, top_p=1.0),
            reward=SimpleNamespace(
                remote_url=["r.py"], timeout=60.0, memory=10, workers=None, overlong_buffer_len=None
            ),
            eval=SimpleNamespace(dataset=held_out, split="train"),
            train=SimpleNamespace(agent_func_path=None, seed=7),
            vllm=SimpleNamespace(tensor_parallel_size=1, gpu_memory_utilization=0.5),
            algo=SimpleNamespace(advantage=SimpleNamespace(ebpo=SimpleNamespace(pass_reward=1.0))),
            use_ms=False,
        )

    return build


def warnings_of(args) -> list[str]:
    return prompt_sets.training_warnings(args)


# model and prompts


@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet"])
def test_the_first_rows_are_looked_at_as_training_makes_prompts_of_them(name, args, tmp_path):
    save(tmp_path / "model")
    begin, cut = warnings_of(args(name=name, input_template="{} Now!", max_len=18))
    assert "100 of 100 prompts lack it" in begin and "or of --data.input_template" in begin
    assert "100 of 100 prompts are longer than the 10 tokens that --data.max_len leaves" in cut
    assert "the longest has 14" in cut
    assert warnings_of(args(name=name, input_template="<bos>{} Now!")) == []


def test_without_a_limit_of_new_tokens_a_prompt_may_fill_all_but_one(args, tmp_path):
    save(tmp_path / "model", begins=False)
    assert warnings_of(args(new_tokens=None, max_len=10)) == []
    (cut,) = warnings_of(args(new_tokens=None, max_len=9))
    assert "90 of 100 prompts are longer than the 8 tokens" in cut


def test_a_data_set_that_is_not_here_leaves_what_the_model_says(args, tmp_path):
    save(tmp_path / "model")
    (found,) = warnings_of(args(prompt_dataset="owner/on_the_hub", max_len=9))
    assert "Write '<bos>' at the beginning of" in found
    save(tmp_path / "instruct", begins=False, template=CHAT, ends=[1, 2])
    assert warnings_of(args(model=tmp_path / "instruct", prompt_dataset="owner/on_the_hub")) == []
    assert warnings_of(args(model="owner/on_the_hub_too")) == []


@pytest.mark.parametrize("broken", ["tokenizer.json", "config.json"])
def test_a_file_of_the_model_that_cannot_be_read_is_said_and_no_error(broken, args, tmp_path):
    """The training's own checks and readers say it in full."""
    save(tmp_path / "model")
    values = args()
    (tmp_path / "model" / broken).write_text("\x1b[2J no JSON")
    (found,) = warnings_of(values)
    assert found.startswith("warning: ") and found.isprintable() and len(found) < 400


@pytest.mark.parametrize("kind", ["files", "saved", "splits"])
def test_a_folder_is_read_as_training_reads_it(kind, args, tmp_path):
    from datasets import Dataset, DatasetDict

    save(tmp_path / "model", begins=False, template=CHAT, ends=[1, 2])
    rows = [{"q": f"<user>{i}<turn_end><assistant>", "a": str(i)} for i in range(40)]
    folder = tmp_path / "set"
    if kind == "files":
        args(rows)
        folder.mkdir()
        (tmp_path / "train.jsonl").rename(folder / "train.jsonl")
    else:
        data = Dataset.from_list(rows)
        (data if kind == "saved" else DatasetDict(train=data, other=data.select(range(3)))).save_to_disk(folder)
    assert warnings_of(args(prompt_dataset=str(folder))) == [], "they are in the chat template"
    (found,) = warnings_of(args(prompt_dataset=str(folder), max_len=9))
    assert "40 of 40 prompts are longer than the 1 tokens" in found
    if kind == "splits":
        (found,) = warnings_of(args(prompt_dataset=str(folder), prompt_split="other", max_len=9))
        assert "3 of 3 prompts are longer" in found
        with pytest.raises(UsageError, match=r"set has no split 'none': give another --data\.prompt_split"):
            warnings_of(args(prompt_dataset=str(folder), prompt_split="none"))
    assert len(prompt_sets.open_prompts(args(), str(folder), "train", 2)) == 2


def test_a_data_set_that_comes_as_code_does_not_run(args, tmp_path):
    save(tmp_path / "model", begins=False)
    (tmp_path / "set").mkdir()
    (tmp_path / "set/set.py").write_text("raise SystemExit")
    (found,) = warnings_of(args(prompt_dataset=str(tmp_path / "set")))
    assert "not looked at" in found


def test_lengths_are_looked_at_beyond_the_first_rows_and_in_every_data_set(args, tmp_path, monkeypatch):
    save(tmp_path / "model", begins=False)
    long = [*ROWS, {"q": "1 " * 30, "a": "2"}]
    (found,) = warnings_of(args(long))
    assert "1 of 101 prompts are longer than the 32 tokens" in found and "the longest has 60" in found
    assert warnings_of(args(long, max_samples=100)) == []
    args(long, name="other.jsonl")
    two = f"{tmp_path / 'train.jsonl'}, {tmp_path / 'other.jsonl'}"
    (found,) = warnings_of(args(prompt_dataset=two))
    assert "1 of 201 prompts are longer" in found
    (found,) = warnings_of(args(held_out=str(tmp_path / "other.jsonl")))
    assert "1 of 101 prompts of --eval.dataset are longer" in found
    monkeypatch.setattr(prompt_sets, "MAX_ROWS", 100)
    assert warnings_of(args(long)) == []
    (found,) = warnings_of(args(long, max_len=16))
    assert "90 of 100 prompts are longer" in found


LATE = 300  # beyond the rows that preflight reads


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize(
    ("name", "line", "cause"),
    [
        ("late.csv", "1, 2 =,3,4", rf"Expected 2 fields in line {LATE + 2}, saw 4"),
        ("late.jsonl", '{"q": "1 +', "JSON parse error"),
        ("late.jsonl", '["1 +", "2"]', "JSON parse error"),
        ("late.jsonl", "\x1b[2J no JSON", "JSON parse error"),
    ],
)
def test_a_data_file_with_a_bad_row_anywhere_is_refused(name, line, cause, held_out, args, tmp_path):
    save(tmp_path / "model")
    rows = [f"{i} + {i} =,{2 * i}" if name.endswith("csv") else f'{{"q": "{i} =", "a": "{i}"}}' for i in range(LATE)]
    header = ["q,a"] if name.endswith("csv") else []
    path = tmp_path / name
    path.write_text("\n".join([*header, *rows, line, *rows]) + "\n")
    with pytest.raises(UsageError, match=rf"late\.\w+ cannot be loaded.*{cause}") as refused:
        warnings_of(args(held_out=str(path)) if held_out else args(prompt_dataset=str(path)))
    assert str(refused.value).isprintable()


def test_held_out_chats_without_a_chat_template_are_refused(args, tmp_path):
    save(tmp_path / "model")
    args([{"q": [{"role": "user", "content": "1 + 1"}], "a": "2"}], name="held_out.jsonl")
    with pytest.raises(UsageError, match=r"--eval\.dataset .*held_out\.jsonl: column 'q' .*chats"):
        warnings_of(args(held_out=str(tmp_path / "held_out.jsonl")))


def test_numbers_are_texts_where_a_template_makes_them_so(args, tmp_path):
    save(tmp_path / "model", begins=False)
    rows = [{"q": i, "a": str(i)} for i in range(300)]
    values = args(rows, input_template="{} + 1 =")
    assert warnings_of(values) == []
    model = values.actor.model_name_or_path
    assert prompt_sets.make_prompts(values, rows[:1], model)[0].text == "0 + 1 ="
    with pytest.raises(UsageError, match=r"holds chats, or something else that is not text: row 1 has one of type int"):
        warnings_of(args(rows))
    for odd in (None, [{"role": "user", "content": "1"}]):
        with pytest.raises(
            UsageError, match=r"row 2 has one of type (NoneType|list)\. Add --data\.apply_chat_template"
        ):
            prompt_sets.make_prompts(args(rows, input_template="{}"), [rows[0], {"q": odd, "a": ""}], model)


def test_chats_without_a_chat_template_are_refused(args, tmp_path):
    save(tmp_path / "model", begins=False, template=CHAT, ends=[1, 2])
    rows = [{"q": [{"role": "user", "content": "1 + 1"}], "a": "2"}]
    with pytest.raises(UsageError, match=r"column 'q' \(--data\.input_key\) holds chats.*--data\.apply_chat_template"):
        warnings_of(args(rows))
    assert warnings_of(args(rows, apply_chat_template=True)) == []


def test_an_empty_prompt_is_refused_by_its_row(args, tmp_path):
    save(tmp_path / "model")
    rows = [*ROWS, {"q": "", "a": "2"}]
    with pytest.raises(UsageError, match=r"train\.jsonl: column 'q' \(--data\.input_key\) is empty in row 101"):
        warnings_of(args(rows))
    assert warnings_of(args(rows, input_template="Q: {}")), "the template makes a prompt of it"


def test_a_chat_that_ends_with_the_assistants_turn_is_refused_by_its_row(args, tmp_path):
    save(tmp_path / "model", template=CHAT, ends=[1, 2])
    asked = [{"role": "user", "content": "1 + 1"}]
    rows = [{"q": asked, "a": "2"}, {"q": [*asked, {"role": "assistant", "content": "2"}], "a": "2"}]
    with pytest.raises(UsageError, match=r"row 2: .*assistant"):
        warnings_of(args(rows, apply_chat_template=True))


# a sample


def test_a_sample_is_asked_as_the_training_asks(args, tmp_path):
    save(tmp_path / "model")
    values = args(input_template="<bos>{}")
    rows = prompt_sets.open_prompts(values, values.data.prompt_dataset, "train", 2)
    prompts = prompt_sets.make_prompts(values, rows, values.actor.model_name_or_path)
    assert [each.text for each in prompts] == ["<bos>0 + 0 =", "<bos>1 + 1 ="]
    engine = train_sample.engine_settings(values, RewardSettings.from_args(values))
    assert (engine.model, engine.max_len, engine.seed) == (str(tmp_path / "model"), 40, 7)
    assert (engine.rewards.sources, engine.rewards.timeout) == (("r.py",), 60)
    assert engine.patience == train_sample.MAX_WAIT_SECONDS


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (
            [Sample([1], True, 0.0, None, {"math_no_answer": 1.0, "math_timeout": 0.0})] * 4,
            [
                (
                    "sample: 0 of 4 have an answer that the reward reads; 0 of 4 pass, mean reward 0; 4 of 4 cut at "
                    "8 tokens"
                ),
                "the reward's own measures, on average: math_timeout 0",
                "warning: no answer is in the form that the reward reads. Ask for it",
            ],
        ),
        (
            [Sample([1], False, 1.0, None, {"x_no_answer": 0.0}), Sample([1], False, 0.0, None, {"x_no_answer": 1.0})],
            ["sample: 1 of 2 have an answer that the reward reads; 1 of 2 pass, mean reward 0.5; 0 of 2 cut"],
        ),
        (
            [Sample([1], False, 0.0, None, {"my_score": 0.5})] * 4,
            ["sample: 0 of 4 pass, mean reward 0; 0 of", "the reward's own measures, on average: my_score 0.5"],
        ),
        (
            [Sample([1], False, 0.5), Sample([1], False, None, "boom \x1b[2J\n!")],
            [
                "sample: 0 of 2 pass, mean reward 0.5; 1 of 2 got no reward; 0 of 2 cut at 8 tokens",
                "warning: no reward, most often: boom [2J !",
            ],
        ),
        ([Sample([1], False)], ["sample: not graded: the run's reward is a model; 0 of 1 cut at 8 tokens"]),
    ],
)
def test_what_a_sample_amounts_to(samples, said, args):
    lines = train_sample.verdict(samples, args())
    assert len(lines) == len(said) and all(map(str.startswith, lines, said)), lines


def test_without_a_limit_of_new_tokens_answers_are_cut_at_the_length_of_all(args):
    assert "--data.max_len 40" in train_sample.verdict([Sample([1], True, 1.0)], args(new_tokens=None))[0]


def test_answers_are_shown_without_control_characters_and_shortened(args, tmp_path):
    from openrlhf_ebpo.upstream.rendering import tokenizer_of

    tokenizer = tokenizer_of(save(tmp_path / "model"))
    tokens = tokenizer("a\n" * 300 + "b<turn_end>", add_special_tokens=False)["input_ids"]
    sample = Sample(tokens, True, 0.0, "\x1b]0;title\x07")
    lines = train_sample.answer_lines(Prompt(3, "1\x1b[2J\u202e\r + 1"), sample, tokenizer)
    assert all(line.isprintable() and len(line) < 300 for line in lines)
    assert lines[0] == "prompt 3  1 [2J + 1" and " … " in lines[1] and lines[1].endswith("a b<turn_end>")
    assert lines[2] == "  (602 tokens, cut, reward 0, no reward: ]0;title )".replace(" )", ")")


@pytest.mark.parametrize(("sample", "dry_run"), [(4, False), (0, True), (-1, True)])
def test_sample_flags_that_make_no_sense(sample, dry_run):
    with pytest.raises(UsageError, match=r"--sample"):
        Command(SimpleNamespace(), [], False, False, dry_run, False, sample, assume_cuda=None).check()


def test_waiting_is_announced_and_bounded(monkeypatch, capsys):
    clock = iter([0.0, 60.0, 90.0])
    ray = SimpleNamespace(wait=lambda refs, timeout: ([], refs))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(engines.time, "monotonic", lambda: next(clock))
    with pytest.raises(EngineError, match=r"engines of m: .*90 s"):
        engines._wait(["ref"], "the engines of m", 90.0)
    assert capsys.readouterr().out == "waiting for the engines of m, since 60 s\n"


def test_numbers_of_an_agents_logs_are_kept_and_nothing_else():
    import torch

    logs = {"a_no_answer": torch.tensor(1.0), "b": 2, "text": "x", "many": torch.tensor([1.0, 2.0]), "none": None}
    response = {"action_ranges": [(1, 3)], "observation_tokens": [5, 6, 7], "truncated": 0, "reward": 1.0}
    assert engines._sample({**response, "extra_logs": logs}).logs == {"a_no_answer": 1.0, "b": 2.0}
    assert engines._sample(response).logs == {}
    for odd in ({"huge": 10**400}, [1.0], "text", torch.ones(2)):
        assert engines._sample({**response, "extra_logs": odd}).logs == {}


def test_answers_come_in_the_order_of_their_prompts():
    prompts = [Prompt(key, "q") for key in (1, 2, 3, 4)]
    found = [(prompts[at], [at]) for at in (1, 3, 0, 2)]
    seen = []

    def arrive():
        for pair in found:
            seen.append(pair[0].key)
            yield pair

    ordered = [(prompt.key, len(seen)) for prompt, _ in train_sample.in_order(arrive(), [1, 2, 3, 4])]
    assert ordered == [(1, 3), (2, 3), (3, 4), (4, 4)]


def test_the_form_of_the_prompts_is_described_next_to_the_tokenizers(args, tmp_path):
    model = save(tmp_path / "model", template=CHAT)
    assert "chat template (--data.apply_chat_template)" in prompt_sets.describe_form(
        args(model=model, apply_chat_template=True)
    )
    form = prompt_sets.describe_form(args(model=model, input_template="Q: {}"))
    assert "--data.input_template is 'Q: {}'" in form and "has a chat template that is not used" in form
