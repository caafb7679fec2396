"""Responses of the engine as records of an evaluation: texts, lengths, ends; and the settings that it is started
with."""

import contextlib
import copy
import dataclasses
import shutil
from types import SimpleNamespace

import pytest
import tiny_tokenizers

from openrlhf_ebpo.engines import engines
from openrlhf_ebpo.engines.engines import EngineSettings, Sample
from openrlhf_ebpo.eval import generate, protocols
from openrlhf_ebpo.eval.prompts import PromptForm
from openrlhf_ebpo.eval.tasks import Question
from openrlhf_ebpo.upstream.rendering import Prompt, tokenizer_of
from openrlhf_ebpo.upstream.tokenizer_fit import EVALUATION

FORM = PromptForm("{question}", source="--template raw")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    from openrlhf_ebpo.quickstart import tiny_model

    folder = tmp_path_factory.mktemp("model")
    tiny_model.build(folder, ["abc"], hidden_size=16, intermediate_size=32)
    return str(folder)


def test_records_hold_text_lengths_and_reasons(model):
    tokenizer = tokenizer_of(model)
    ids = [*tokenizer.encode("cab"), tokenizer.eos_token_id]
    found = generate.to_record([Sample(ids, False), Sample(ids[:2], True)], model, 43)
    texts = {"responses": ["cab", "ca"], "prompt": ""}
    assert found == {**texts, "lengths": [4, 2], "finish_reasons": ["stop", "length"], "seed": 43}


@pytest.mark.parametrize(
    ("stop", "text", "kept"),
    [
        (["b"], "cab", "ca"),
        (["b", "a"], "cab", "c"),  # the earliest
        (["ca"], "cab", ""),  # ends in the second token
        (["c"], "cab", "cab"),  # vLLM does not look at the first token
        (["c"], "cabc", "cab"),
        (["x"], "cab", "cab"),
        ([], "cab", "cab"),
    ],
)
def test_a_response_ends_where_its_stop_text_begins(stop, text, kept):
    assert generate.text_before_stop(stop, "".join, list(text)) == kept


def test_thoughts_that_the_prompt_opens_and_their_tags_are_kept_whatever_the_tokenizer_calls_special(model, tmp_path):
    folder = str(shutil.copytree(model, tmp_path / "special"))
    tokenizer = copy.deepcopy(tokenizer_of(model))
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>", "<x>"]})
    tokenizer.save_pretrained(folder)
    ids = [*tokenizer.encode("a<x></think>b"), tokenizer.eos_token_id]
    found = generate.to_record([Sample(ids, False)], folder, 43, (), "Q<think>\n")
    assert found["responses"] == ["a</think>b"] and found["prompt"] == "Q<think>\n"


def test_engines_have_room_for_the_longest_prompt_unless_the_protocol_leaves_less(model):
    asked = [Prompt(text, text) for text in ("a", "abc")]
    engine = EngineSettings(model, num_engines=2, gpu_memory_utilization=0.5, enforce_eager=True)
    settings, warnings = engines.fit_window(engine, asked, 10, False, EVALUATION)
    assert (settings.max_len, settings.num_engines, warnings) == (13, 2, [])
    _, (line,) = engines.fit_window(dataclasses.replace(engine, max_len=12), asked, 10, False, EVALUATION)
    assert "1 of 2 prompts are longer than the 2 tokens that --max_model_len leaves" in line


def test_an_evaluation_warns_of_a_begin_token_that_the_prompts_lack(tmp_path):
    model = tiny_tokenizers.save(tmp_path)
    job = SimpleNamespace(task=SimpleNamespace(name="t"), missing=[Question("q", "1 + 1?", "2")])
    for bos, text in ((False, "1 + 1?"), (True, "<bos>1 + 1?")):
        form = dataclasses.replace(FORM, template="<bos>" * bos + FORM.template)
        asked = generate._prompts(job, form, model)
        assert asked["t/q"][1].text == text
        _, lines = engines.fit_window(EngineSettings(model, max_len=100), [asked["t/q"][1]], 10, False, EVALUATION)
        assert ["or of --template" in line for line in lines] == [True] * (not bos)


def test_every_missing_question_is_asked_once_as_the_protocol_says_and_kept_with_its_prompt(model, monkeypatch):
    """No engine starts: what one would be given is looked at."""
    kept, asked = {}, []

    def generate_samples(actors, prompts, sampling, settings):
        asked.append((sampling, settings))
        for prompt in prompts:
            yield prompt, [Sample(tokenizer_of(model).encode("ab"), False)] * sampling.n

    def job(name: str, *texts: str) -> SimpleNamespace:
        questions = [Question(text, text, "1") for text in texts]
        task = SimpleNamespace(name=name, questions=questions)
        return SimpleNamespace(task=task, missing=questions[1:], records={"a": {}}, add=kept_for(name))

    def kept_for(name: str):
        return lambda key, record: kept.update({f"{name}/{key}": record})

    monkeypatch.setattr(generate.engines, "prepare_process", lambda: None)
    monkeypatch.setattr(generate.engines, "started", lambda settings: contextlib.nullcontext([]))
    monkeypatch.setattr(generate.engines, "generate", generate_samples)
    protocol = protocols.override(protocols.PROTOCOLS["default"], n=2, temperature=0.5, top_k=7, stop=("x",), seed=5)
    form = dataclasses.replace(FORM, template="b{question}")
    generate.respond([job("one", "a", "b", "c"), job("two", "a", "b")], model, form, protocol, EngineSettings(model))
    assert {key: record["prompt"] for key, record in kept.items()} == {"one/b": "bb", "one/c": "bc", "two/b": "bb"}
    assert all(record["responses"] == ["ab", "ab"] for record in kept.values())
    ((sampling, settings),) = asked
    assert (sampling.n, sampling.temperature, sampling.top_k, sampling.stop) == (2, 0.5, 7, ("x",))
    assert (settings.seed, settings.max_len) == (5 + 2, 2 + protocol.max_new_tokens)
    generate.respond([job("one", "a")], model, form, protocol, EngineSettings(model))
    assert len(asked) == 1, "nothing is missing"
