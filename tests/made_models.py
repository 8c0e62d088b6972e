"""Tiny models and tokenizers that several test files share: made in memory in well under a second, no downloads."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

SENTENCES = (
    "Who founded the town where the author of the book was born?",
    "<think> I need the birth place first. </think> <search>birth place of the author</search>\n\n",
    "<information>Doc 1(Title: Beta) Beta was founded by Gamma in 1901.\n</information>\n\n",
    '<tool_call>\n{"name": "search", "arguments": {"query": "who founded Beta"}}\n</tool_call>',
    "<tool_response>Doc 1(Title: Alpha) Alpha is the capital of Beta.\n</tool_response>",
    "<answer>Gamma</answer>\n\n",
    "Answer the question. You may search; results come back between tags. Café, naïve, 東京 – “quoted”.",
)
"""What the tokenizers are trained on."""

# Letters with a leading blank; single digits; punctuation with the line ends after it, so that ">\n\n" may be a token;
# line ends; blanks.
WORDS = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"

CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2's shape."""

DROPS_THOUGHTS = (
    "{% set last = namespace(user=0) %}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' %}{% if loop.index0 < last.user %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}"
    "{% elif '</think>' not in content %}{% set content = '<think>\n\n</think>\n\n' + content %}{% endif %}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen3's shape: thoughts before the last user message vanish from history, an empty one appears after it."""

HEADERS = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""Llama 3's shape: a beginning-of-text id, an end-of-turn that is not the end-of-text, trimmed messages."""

PLAIN = (
    "{% for message in messages %}{% if message['role'] == 'user' %}### Question:\n{{ message['content'] }}\n\n"
    "{% else %}### Reply:\n{{ message['content'] }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Reply:\n{% endif %}"
)
"""Without special tokens: turns end by the end-of-text id alone, which the template does not show."""

STYLES: dict[str, tuple[str | None, dict[str, str]]] = {
    "qwen2": (CHATML, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
    "qwen3": (DROPS_THOUGHTS, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
    "llama": (HEADERS, {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}),
    "plain": (PLAIN, {"eos_token": "<|endoftext|>"}),
    "base": (None, {"eos_token": "<|endoftext|>"}),
    "base with bos": (None, {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}),
    "merging": (CHATML, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
}
"""Style of tokenizer to its chat template and the tokens it names."""

MARKS = {CHATML: ("<|im_start|>", "<|im_end|>"), DROPS_THOUGHTS: ("<|im_start|>", "<|im_end|>")}
MARKS[HEADERS] = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


@functools.cache
def _trained(merging: bool) -> Tokenizer:
    """A byte-level BPE; with `merging`, tokens reach past ``</search>`` into what follows."""
    tokenizer = Tokenizer(BPE())
    split = [] if merging else [pre_tokenizers.Split(Regex(WORDS), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    texts = [*SENTENCES, *(["</search>\n\n", "</answer>\n\n"] * 9 if merging else [])]
    trainer = BpeTrainer(
        vocab_size=400, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@functools.cache
def _made(style: str) -> PreTrainedTokenizerBase:
    template, names = STYLES[style]
    inner = Tokenizer.from_str(_trained(style == "merging").to_str())
    marks = dict.fromkeys([*names.values(), *MARKS.get(template or "", ())])
    inner.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=10**9, **names)
    tokenizer.chat_template = template
    return tokenizer


def tiny_tokenizer(style: str = "qwen2") -> PreTrainedTokenizerBase:
    """A tokenizer of its own for the caller.

    Args:
        style: A key of `STYLES`: ``"merging"`` has tokens that reach past ``</search>``, ``"qwen3"`` a template that
            drops old thoughts, ``"base"`` no chat template.
    """
    return copy.deepcopy(_made(style))


def tiny_qwen2(
    vocabulary: int = 512, dtype: torch.dtype = torch.float32, seed: int = 0, sharp: float = 0.3, **config: int
) -> PreTrainedModel:
    """A Qwen2 with random weights, in evaluation mode.

    Args:
        vocabulary: Token ids it knows; more than any tokenizer here has.
        dtype: Of its weights.
        seed: Of its weights; torch's own generator is left as it was.
        sharp: Deviation of the weights: larger makes its distributions sharper.
        config: Further fields of `Qwen2Config`.
    """
    fields = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=vocabulary,
                tie_word_embeddings=True,
                initializer_range=sharp,
                bos_token_id=None,
                eos_token_id=None,
                **(fields | config),
            )
        )
    return model.to(dtype).eval()


def save_tiny(folder: Path, style: str = "qwen2") -> Path:
    """Writes a tiny model with its tokenizer as a folder in Hugging Face format, and returns the folder."""
    tiny_qwen2().save_pretrained(folder)
    tiny_tokenizer(style).save_pretrained(folder)
    return folder
