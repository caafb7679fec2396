"""A tiny Qwen3 with random weights and a tokenizer that reads character by character."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

PAD, END, UNKNOWN = "<|endoftext|>", "<|im_end|>", "<|unk|>"
PIECES = r"^.*: |[\s\S]"  # the task's instruction, up to its last colon, is one token; then each character


def build(directory: str | Path, texts: Iterable[str], *, tied: bool = True, seed: int = 0, **sizes) -> None:
    """Write model and tokenizer to `directory`; the vocabulary is what `texts` need.

    sizes: any Qwen3Config field, over the defaults of `small_config`.
    """
    import torch
    from transformers import Qwen3ForCausalLM, logging

    logging.disable_progress_bar()
    tokenizer = build_tokenizer(texts)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(small_config(len(tokenizer), tokenizer, tie_word_embeddings=tied, **sizes))
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def small_config(vocabulary: int, tokenizer, **fields):
    from transformers import Qwen3Config

    defaults = {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,  # at this width the usual 0.02 learns several times slower
    }
    return Qwen3Config(
        vocab_size=vocabulary,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **{**defaults, **fields},
    )


def build_tokenizer(texts: Iterable[str]):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = dict.fromkeys(piece for text in texts for piece in re.findall(PIECES, text))
    words = list(dict.fromkeys([PAD, END, UNKNOWN, " ", *pieces]))  # OpenRLHF puts a space before the end token
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )
