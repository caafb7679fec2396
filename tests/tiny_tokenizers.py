"""Tokenizers of single characters and special tokens, in the kinds that models come with, and a configuration next to
them."""

import json
from collections.abc import Sequence
from pathlib import Path

CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n"]
BEGIN, END, TURN_END = "<bos>", "<eos>", "<turn_end>"
SPECIAL = (BEGIN, END, TURN_END)
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<turn_end>{% endfor %}<assistant>"
CHAT_WITH_BEGIN = "{{ bos_token }}" + CHAT


def save(
    folder: Path,
    *,
    begins: bool = True,
    template: str | None = None,
    end: str | None = END,
    ends: int | Sequence[int] | None = 1,
    begin: str | None = BEGIN,
    special: Sequence[str] = SPECIAL,
    generation: dict | None = None,
    put: str | None = None,
    **config,
) -> str:
    """Write a tokenizer to `folder`, as Llama's and Gemma's if it `begins` every text with a token; returns the folder.

    Args:
        put: what it begins texts with, if not `begin`. ends: eos_token_id of config.json. generation:
            generation_config.json. config: more of config.json.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate([*special, "<unk>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{put or begin} $A", special_tokens=[(each, vocabulary[each]) for each in (put or begin).split()]
        )
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begin, eos_token=end, unk_token="<unk>")
    whole.add_special_tokens({"additional_special_tokens": list(special)})
    whole.chat_template = template
    whole.save_pretrained(folder)
    write_configs(folder, {"eos_token_id": ends, "vocab_size": len(vocabulary), **config}, generation)
    return str(folder)


def save_llama(folder: Path) -> str:
    """A tokenizer of transformers' own class for Llama 2: sentencepiece, a space before what stands first."""
    from transformers import LlamaTokenizer

    words = ["<unk>", "<s>", "</s>", "▁", *CHARACTERS[1:], "▁a"]
    tokenizer = LlamaTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[("▁", "a")], add_bos_token=True)
    tokenizer.save_pretrained(folder)
    write_configs(folder, {"eos_token_id": 2, "bos_token_id": 1, "vocab_size": len(words)})
    return str(folder)


def save_gemma(folder: Path) -> str:
    """A tokenizer of transformers' own class for Gemma."""
    from transformers import GemmaTokenizer

    words = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *CHARACTERS[1:]]
    tokenizer = GemmaTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], add_bos_token=True)
    tokenizer.save_pretrained(folder)
    write_configs(folder, {"eos_token_id": 1, "bos_token_id": 2, "vocab_size": len(words)})
    return str(folder)


def write_configs(folder: Path, config: dict, generation: dict | None = None) -> None:
    (Path(folder) / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    if generation is not None:
        (Path(folder) / "generation_config.json").write_text(json.dumps(generation))
