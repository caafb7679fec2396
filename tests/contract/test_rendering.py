"""Prompts outside training are the prompts of training, and the tokenizer travels by its name."""

import pickle
from types import SimpleNamespace

import pytest
from tiny_tokenizers import save

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
from openrlhf_ebpo.upstream.rendering import TokenizerByReference, prompt_lengths, render_prompts, tokenizer_of

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
TEXTS = [{"id": "a", "prompt": "1+1=", "label": "2"}]
CHATS = [{"id": "b", "prompt": [{"role": "system", "content": "+"}, {"role": "user", "content": "2+2="}], "label": "4"}]
WAYS = [
    (TEXTS, {}, "1+1="),
    (TEXTS, {"input_template": "q: {} a:"}, "q: 1+1= a:"),
    (TEXTS, {"apply_chat_template": True}, "<user>1+1=<assistant>"),
    (CHATS, {"apply_chat_template": True}, "<system>+<user>2+2=<assistant>"),
]


def data_set(rows: list[dict], model: str, **flags):
    """Upstream's own, as training makes it."""
    from datasets import Dataset
    from openrlhf.datasets.prompts_dataset import PromptDataset

    data = {"input_key": "prompt", "label_key": "label", "cluster_key": None, "apply_chat_template": False, **flags}
    strategy = SimpleNamespace(args=SimpleNamespace(data=SimpleNamespace(**data)), is_rank_0=lambda: False)
    return PromptDataset(Dataset.from_list(rows), tokenizer_of(model), strategy, flags.get("input_template"))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    from openrlhf_ebpo.quickstart.tiny_model import build_tokenizer

    folder = tmp_path_factory.mktemp("tokenizers")
    for name, template in (("chat", CHAT), ("plain", None)):
        tokenizer = build_tokenizer(["<abcdefghijklmnopqrstuvwxyz>0123456789+="])
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder / name)
        (folder / name / "config.json").write_text('{"model_type": "qwen3"}')
    return str(folder)


@pytest.mark.parametrize(("rows", "flags", "text"), WAYS, ids=["bare", "template", "text in chat", "chat"])
def test_prompts_equal_those_of_upstreams_data_set(model, rows, flags, text):
    expected = data_set(rows, f"{model}/chat", **flags)
    found = render_prompts(rows, f"{model}/chat", **flags)
    assert [(p.text, p.label) for p in found] == list(zip(expected.prompts, expected.labels, strict=True))
    assert (found[0].key, found[0].text) == (rows[0]["id"], text)


def test_arguments_of_the_chat_template_reach_every_rendering(tmp_path):
    """Upstream's data sets of training and warm start, prompts outside training, and agents in another process."""
    from datasets import Dataset
    from openrlhf.datasets import PromptDataset, SFTDataset
    from openrlhf.utils import get_tokenizer

    model, kwargs = save(tmp_path, template="{{ effort }}" + CHAT, model_type="qwen3"), {"effort": 3}
    data = {"input_key": "prompt", "label_key": "label", "output_key": "label", "cluster_key": None}
    data |= {"apply_chat_template": True, "template_kwargs": ["effort=3"]}
    strategy = SimpleNamespace(args=SimpleNamespace(data=SimpleNamespace(**data)), is_rank_0=lambda: False)
    tokenizer = get_tokenizer(model, None, "right", strategy)
    tokenizer.save_pretrained(tmp_path / "saved")
    rows = Dataset.from_list(TEXTS)
    texts = PromptDataset(rows, tokenizer, strategy).prompts
    texts += SFTDataset(rows, tokenizer, 64, strategy, num_processors=2).prompts
    texts += [each.text for each in render_prompts(TEXTS, model, True, template_kwargs=kwargs)]
    arrived = pickle.loads(pickle.dumps(TokenizerByReference(model, True, (("effort", "3"),))))
    for each in (arrived, pickle.loads(pickle.dumps(tokenizer))):
        chat = [{"role": "user", "content": "1+1="}]
        texts.append(each.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    assert texts == ["3<user>1+1=<assistant>"] * 5
    assert render_prompts(TEXTS, model, True)[0].text == "<user>1+1=<assistant>"


def test_the_length_of_a_prompt_is_that_of_its_tokens(model):
    prompts = render_prompts(TEXTS, f"{model}/chat", apply_chat_template=True)
    assert prompt_lengths(prompts, f"{model}/chat") == [len("<user>1+1=<assistant>")]


def test_a_tokenizer_without_chat_template_is_an_error_in_words(model):
    with pytest.raises(UsageError, match=r"plain reads: .*chat"):
        render_prompts(TEXTS, f"{model}/plain", apply_chat_template=True)


def test_a_tokenizer_travels_by_name_and_is_read_once_a_process(model):
    sent = pickle.dumps(TokenizerByReference(f"{model}/chat"))
    assert len(sent) < 500
    assert pickle.loads(sent) is pickle.loads(sent) is tokenizer_of(f"{model}/chat")


@pytest.mark.parametrize("slow", [False, True])
def test_a_training_prompt_goes_to_its_engine_with_the_tokenizers_name(model, rollout_args, monkeypatch, slow):
    from openrlhf.trainer.ppo_utils import samples_generator

    class Engine:
        def __init__(self):
            self.sent, self.limits = [], []
            self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: 0)
            self.limit_rewards = SimpleNamespace(remote=self.limits.append)
            self.generate_responses = SimpleNamespace(remote=lambda **request: self.sent.append(request))

    monkeypatch.setattr(samples_generator, "ray", SimpleNamespace(get=lambda values: values))
    flags = {"actor.model_name_or_path": f"{model}/chat", "data.disable_fast_tokenizer": slow}
    flags |= {"data.template_kwargs": None, "reward.timeout": 7.5, "reward.memory": 100, "rollout.max_new_tokens": None}
    args = rollout_args("rloo", G=4, **flags)
    engines = [Engine(), Engine()]
    whole = tokenizer_of(f"{model}/chat")
    generator = samples_generator.SamplesGenerator(SimpleNamespace(args=args), [], None, whole, engines)
    generator._dispatch_prompts_to_vllm(["1+1=", "2+2="], ["2", "4"])
    assert [[request["prompt"] for request in engine.sent] for engine in engines] == [["1+1="], ["2+2="]]
    assert [engine.limits for engine in engines] == [[RewardSettings(timeout=7.5, memory_mb=100)]] * 2
    sent = pickle.dumps(engines[0].sent[0]["hf_tokenizer"])
    assert len(sent) < 1000 < len(pickle.dumps(whole))
    arrived = pickle.loads(sent)
    assert arrived is (tokenizer_of(f"{model}/chat", False) if slow else whole)
    assert arrived.get_vocab() == whole.get_vocab() and arrived.padding_side == whole.padding_side == "left"
