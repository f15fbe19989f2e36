"""`config.json` and its neighbours, made from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.errors import UnsupportedModelError
from ingot.models.gguf.architectures import ARCHITECTURES
from ingot.models.gguf.expert_architectures import COUNT, WITH_EXPERTS
from ingot.models.gguf.metadata import ARCHITECTURE, Metadata
from ingot.models.gguf.rope import MSCALES, YARN, ReadFloats, rope_scaling
from ingot.models.gguf.spelling import GgufArchitecture
from ingot.models.gguf.tokenizer import CONTROL, USER_DEFINED
from ingot.models.gguf.types import BY_NAME

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_ROTATED = "rope.dimension_count"
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Tokens that end an answer although no key of the metadata names them, as in llama.cpp.
_ENDS = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <end_of_turn> <|endoftext|> <|eom_id|> "
    "<EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <|end_of_sentence|> "
    "<｜end▁of▁sentence｜> <|eos|> <eos> </s>".split()
)
# Beside these a message ends by `<|end|>`, and an answer has several: gpt-oss.
_OF_ANSWERS, _OF_MESSAGES = frozenset({"<|return|>", "<|call|>"}), "<|end|>"
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def architecture_of(metadata: Metadata) -> GgufArchitecture:
    """The table of the file's architecture. Raises UnsupportedModelError where there is none."""
    experts = metadata.values.get(f"{metadata.architecture}.{COUNT}", 0)
    found = (WITH_EXPERTS if experts else ARCHITECTURES).get(metadata.architecture)
    if found:
        return found
    what = f"{ARCHITECTURE} = {metadata.architecture!r:.40}" + (" with experts" if experts else "")
    raise UnsupportedModelError(
        f"{metadata.path} has {what}",
        hint=f"supported GGUF files: {', '.join(ARCHITECTURES)}, and with experts "
        f"{', '.join(WITH_EXPERTS)}; of another model, give the one that it was made from, as "
        "safetensors",
    )


def config_values(metadata: Metadata, read: ReadFloats) -> dict[str, Any]:
    """The object in config.json; `read` gives the numbers of a tensor.

    Raises ConfigError and UnsupportedModelError for what is missing, wrong or not known.
    """
    spelled = architecture_of(metadata)
    values: dict[str, Any] = {"architectures": [spelled.name], **spelled.fixed}
    values |= {key: metadata.of_model(name) for key, name in spelled.keys.items()}
    given = {key: metadata.of_model(name, None) for key, name in spelled.optional.items()}
    values |= {key: value for key, value in given.items() if value is not None}
    if "sliding_window" in (*spelled.keys, *spelled.optional):  # 0, or none said: no window
        values["sliding_window"] = values.get("sliding_window") or None
    if EMBEDDING in metadata.tensors:
        values["vocab_size"] = metadata.tensors[EMBEDDING].shape[0]
    values |= _partial(metadata, spelled)
    scaling = rope_scaling(metadata, read, metadata.of_model("rope.freq_base", 10000.0))
    if scaling:
        scaling |= {key: scaling[key] / spelled.log_multiplier for key in MSCALES & scaling.keys()}
        scaling |= spelled.yarn if scaling["rope_type"] == YARN else {}
        values[spelled.rope] = scaling
    values |= {f"{name}_token_id": metadata.token_id(name) for name in ("bos", "eos")}
    values |= {"tie_word_embeddings": HEAD not in metadata.tensors, "dtype": _dtype(metadata)}
    if any(BY_NAME[info.dtype].decode for info in metadata.tensors.values()):
        values["quantization_config"] = {"quant_method": "gguf"}
    return values | spelled.more(metadata)


def generation_values(metadata: Metadata) -> dict[str, Any]:
    """The object in generation_config.json: which tokens end an answer, and how to sample.

    A file that says how to sample asks for draws, unless at a temperature of 0. Raises ConfigError
    for a setting that is no number.
    """
    named = [metadata.token_id(name) for name in ("eos", "eot", "eom")]
    ends = [token for token in named if token is not None] + _known_ends(metadata.values)
    found = {k: metadata.number(f"general.sampling.{name}") for k, name in _SAMPLING.items()}
    given = {key: value for key, value in found.items() if value is not None}
    return {
        "bos_token_id": metadata.token_id("bos"),
        "eos_token_id": list(dict.fromkeys(ends)),
        **({"do_sample": True} if given and given.get("temperature", 1) else {}),
        **given,
    }


def tokenizer_values(metadata: Metadata) -> dict[str, Any]:
    """The object in tokenizer_config.json: special tokens and chat templates."""
    tokens = metadata.values.get("tokenizer.ggml.tokens", [])
    values: dict[str, Any] = {}
    for key, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        found = metadata.token_id(name)
        if found is not None and found < len(tokens):
            values[f"{key}_token"] = tokens[found]
    prefix = "tokenizer.chat_template"
    default = metadata.values.get(prefix)
    named = {
        key.removeprefix(f"{prefix}."): text
        for key, text in metadata.values.items()
        if key.startswith(f"{prefix}.") and isinstance(text, str)
    }
    if isinstance(default, str):
        named = {"default": default} | named
    if named.keys() - {"default"}:
        values["chat_template"] = [{"name": n, "template": t} for n, t in named.items()]
    elif named:
        values["chat_template"] = named["default"]
    return values


def _known_ends(values: Mapping[str, Any]) -> list[int]:
    tokens, kinds = (values.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    if tokens is None or kinds is None:
        return []
    found = {
        token: i
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind in (CONTROL, USER_DEFINED) and token in _ENDS
    }
    if found.keys() >= _OF_ANSWERS:
        found.pop(_OF_MESSAGES, None)
    return list(found.values())


def _partial(metadata: Metadata, spelled: GgufArchitecture) -> dict[str, float]:
    """The share of a head that is rotated, where it is not all of it or has to be said."""
    if _ROTATED in spelled.keys.values():  # a size of its own, all of which is rotated
        return {}
    size = metadata.head_size
    rotated = metadata.of_model(_ROTATED, size)
    key = spelled.partial or ("partial_rotary_factor" if rotated != size else "")
    return {key: rotated / size} if key else {}


def _dtype(metadata: Metadata) -> str:
    """The dtype of the matrices. What is quantized is computed in bfloat16."""
    found = {info.dtype for info in metadata.tensors.values() if len(info.shape) > 1}
    wide = [name for name in _DTYPES if name in found]
    return _DTYPES[wide[-1]] if wide and found <= _DTYPES.keys() else "bfloat16"
