"""Conversion of a GGUF file to a model folder, one tensor at a time."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from searchgym.errors import DataError

MODULES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
"""Name of a tensor in a GGUF file to the module of transformers that holds it."""


def convert(file: Path, folder: Path, bfloat16: bool = False) -> None:
    """Writes the tokenizer, configuration and weights of a GGUF file to a folder.

    At most one de-quantised tensor is in memory. A separate head is tied to the embedding: its values stand for both.

    Args:
        file: GGUF file of a model of the family llama or qwen2.
        folder: Existing folder to write to.
        bfloat16: Whether to round the weights to bfloat16; default: float32, in which every value is exact.

    Raises:
        DataError: The model is of another family.
    """
    import gguf
    from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerFast, Qwen2Tokenizer

    classes: dict[str, Any] = {"llama": PreTrainedTokenizerFast, "qwen2": Qwen2Tokenizer}
    reader = gguf.GGUFReader(file)
    value = functools.partial(_value, reader, file)
    family = value("general.architecture")
    if family not in classes:
        raise DataError(f"a model of the family {family}: only {', '.join(classes)} are converted", file)
    tokenizer = classes[family].from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    if family == "qwen2":
        from tokenizers.normalizers import NFC

        tokenizer.backend_tokenizer.normalizer = NFC()  # the published tokenizer has it, the file does not name it
    tokenizer.save_pretrained(folder)
    size = {name: value(f"{family}.{name}") for name in ("attention.head_count", "attention.head_count_kv")}
    vocabulary = next(int(tensor.shape[1]) for tensor in reader.tensors if tensor.name == "token_embd.weight")
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = AutoConfig.for_model(
        family,
        architectures=["Qwen2ForCausalLM" if family == "qwen2" else "LlamaForCausalLM"],
        max_position_embeddings=value(f"{family}.context_length"),
        num_hidden_layers=value(f"{family}.block_count"),
        intermediate_size=value(f"{family}.feed_forward_length"),
        hidden_size=value(f"{family}.embedding_length"),
        num_attention_heads=size["attention.head_count"],
        num_key_value_heads=size["attention.head_count_kv"],
        rms_norm_eps=value(f"{family}.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value(f"{family}.rope.freq_base")},
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        dtype="bfloat16" if bfloat16 else "float32",
        **{f"{name}_token_id": value for name, value in ids.items()},
    )
    config.save_pretrained(folder)
    ends = [ids["eos"], ids["pad"]] if family == "qwen2" else ids["eos"]  # <|im_end|> and <|endoftext|>
    settings: Any = GenerationConfig
    settings(bos_token_id=ids["bos"], eos_token_id=ends, pad_token_id=ids["pad"]).save_pretrained(folder)
    heads = {"attn_q": size["attention.head_count"], "attn_k": size["attention.head_count_kv"]}
    with (folder / "model.safetensors").open("xb") as out:
        _write(reader, heads if family == "llama" else {}, bfloat16, out)


def _value(reader: Any, file: Path, name: str) -> Any:
    """Returns a field of a GGUF file."""
    if (field := reader.get_field(name)) is None:
        raise DataError(f"lacks the field {name}", file)
    return field.contents()


def _write(reader: Any, heads: dict[str, int], bfloat16: bool, out: BinaryIO) -> None:
    """Writes all tensors as safetensors, each de-quantised when it is its turn."""
    from gguf.quants import dequantize

    tensors = {tensor.name: tensor for tensor in reader.tensors if tensor.name != "rope_freqs.weight"}
    head = tensors.pop("output.weight", None)
    if head is not None:
        tensors["token_embd.weight"] = head._replace(name="token_embd.weight")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end, width, kind = 0, (2 if bfloat16 else 4), ("BF16" if bfloat16 else "F32")
    for name, tensor in tensors.items():
        begin, end = end, end + int(tensor.n_elements) * width
        shape = [int(length) for length in reversed(tensor.shape)]
        header[_module(name)] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out.write(len(text).to_bytes(8, "little") + text)
    for name, tensor in tensors.items():
        weights = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        layer_kind = name.split(".")[-2]
        if name.endswith(".weight") and layer_kind in heads:
            weights = halves_first(weights, heads[layer_kind])
        if bfloat16:
            import torch

            values = torch.tensor(weights).bfloat16().view(torch.int16).numpy()
            out.write(values.data)
        else:
            out.write(np.ascontiguousarray(weights).data)


def _module(name: str) -> str:
    """Returns the name in transformers of a tensor in a GGUF file."""
    *layer, kind, suffix = name.split(".")
    if kind not in MODULES:
        raise DataError(f"a tensor of unknown name: {name}")
    return f"model.layers.{layer[1]}.{MODULES[kind]}.{suffix}" if layer else f"{MODULES[kind]}.{suffix}"


def halves_first(weights: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Returns the rows of queries or keys in transformers' order; files of llama interleave each head's halves."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).transpose(0, 2, 1, 3).reshape(rows, columns)
