"""Writes model directories of exact shapes with random bfloat16 weights, for benchmarks.

    python -m bench.make_model OUT_DIR --shape qwen3-0.6b [--seed 0]
                               [--tokenizer tokenizer.json | --words]

Weights are written tensor by tensor, so that any shape fits in little memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from bench.expert_shapes import EXPERT_SHAPES
from bench.family_shapes import FAMILY_SHAPES, family_config
from bench.record_shapes import RECORD_SHAPES
from bench.rwkv_shapes import RWKV_SHAPES, rwkv_config, rwkv_weights

SHARD_BYTES = 4 * 10**9
# Rows of random numbers drawn at a time, so that a large embedding needs little memory.
ELEMENTS_AT_ONCE = 2**24
# Small enough that activations neither vanish nor explode through the depth.
STD = 0.02
SPECIAL_TOKENS = ("<|bos|>", "<|eos|>")

Config = transformers.PreTrainedConfig
Values = Callable[[str, tuple[int, ...]], Iterator[torch.Tensor]]  # of a tensor, piece by piece


def _qwen3(hidden: int, inner: int, layers: int, heads: int) -> Config:
    return transformers.Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=151643,
        eos_token_id=151645,
        max_window_layers=layers,
    )


def _llama_32_1b() -> Config:
    return transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        tie_word_embeddings=True,
        bos_token_id=128000,
        eos_token_id=[128001, 128008, 128009],
    )


def _qwen25_05b() -> Config:
    return transformers.Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=151643,
        eos_token_id=151645,
        max_window_layers=24,
    )


def _mistral_7b() -> Config:
    return transformers.MistralConfig(
        vocab_size=32768,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        sliding_window=None,
        rms_norm_eps=1e-5,
    )


def _llama_31_8b() -> Config:
    return transformers.LlamaConfig(
        vocab_size=128256,
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        bos_token_id=128000,
        eos_token_id=128001,
    )


def _deepseek_v2_lite(layers: int) -> Config:
    """Some layers, each with one MLP as wide as the 8 experts that compute a token."""
    return transformers.DeepseekV2Config(
        vocab_size=102400,
        hidden_size=2048,
        intermediate_size=8 * 1408,
        num_hidden_layers=layers,
        first_k_dense_replace=layers,
        num_experts_per_tok=6,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        max_position_embeddings=163840,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
        bos_token_id=100000,
        eos_token_id=100001,
    )


def _bge_m3() -> Config:
    """All layers, and words enough for texts of random tokens: a look-up reads no more of more."""
    return transformers.XLMRobertaConfig(
        vocab_size=32768,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        max_position_embeddings=8194,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )


def _tiny(layers: int = 2) -> Config:
    return transformers.Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        tie_word_embeddings=True,
        bos_token_id=256,
        eos_token_id=257,
        max_window_layers=layers,
    )


SHAPES: dict[str, Callable[[], Config]] = {
    "tiny": _tiny,
    "tiny-28": lambda: _tiny(28),
    "tiny-80": lambda: _tiny(80),
    "qwen3-0.6b": lambda: _qwen3(1024, 3072, 28, 16),
    "qwen3-4b": lambda: _qwen3(2560, 9728, 36, 32),
    "llama-3.2-1b": _llama_32_1b,
    "llama-3.1-8b": _llama_31_8b,
    "qwen2.5-0.5b": _qwen25_05b,
    "mistral-7b": _mistral_7b,
    "bge-m3": _bge_m3,
    "deepseek-v2-lite-4": lambda: _deepseek_v2_lite(4),
    **{
        name: partial(family_config, name)
        for name in (*FAMILY_SHAPES, *EXPERT_SHAPES, *RECORD_SHAPES)
    },
}


def make_model(
    out: Path,
    shape: str,
    *,
    seed: int = 0,
    tokenizer: Path | None = None,
    words: bool = False,
    shard_bytes: int = SHARD_BYTES,
    repeat: bool = False,
    drawn_bytes: float = math.inf,
) -> dict[str, int]:
    """Writes a model directory; the same arguments give the same bytes.

    With `words` every token has a text: a server streams no token that has none.

    With `repeat` the same numbers come again and again, which is quicker by far. Matrices behind
    the first `drawn_bytes` are zeros, which take no room on a disk.

    Returns:
        Numbers of parameters, of bytes of the weights and of shards.
    """
    config, shapes = write_config(out, shape)
    rng = torch.Generator().manual_seed(seed)
    values = _repeated_values(rng) if repeat else partial(_random_values, rng)
    values = _zeros_behind(drawn_bytes, values)
    shards = _write_weights(out, shapes, values, shard_bytes)
    if tokenizer is None:
        write_byte_tokenizer(out, config.vocab_size, words=words)
    else:
        shutil.copy(tokenizer, out / "tokenizer.json")
    parameters = sum(math.prod(s) for s in shapes.values())
    return {"parameters": parameters, "bytes": 2 * parameters, "shards": shards}


def write_config(out: Path, shape: str) -> tuple[Config, dict[str, tuple[int, ...]]]:
    """Writes config.json and generation_config.json; returns the config and the weights' shapes."""
    if shape in RWKV_SHAPES:
        own = rwkv_config(shape)
        out.mkdir(parents=True, exist_ok=True)
        (out / "config.json").write_text(json.dumps(vars(own), indent=2) + "\n")
        return own, rwkv_weights(own)
    config = SHAPES[shape]()
    with torch.device("meta"):
        reads = isinstance(config, transformers.XLMRobertaConfig)
        of = transformers.AutoModel if reads else transformers.AutoModelForCausalLM
        model = of.from_config(config)
    config.architectures = [type(model).__name__]
    config.dtype = "bfloat16"
    out.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(out)
    generation = {"bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    return config, {name: tuple(p.shape) for name, p in model.named_parameters()}


def _write_weights(
    out: Path, shapes: dict[str, tuple[int, ...]], values: Values, shard_bytes: int
) -> int:
    groups = _grouped(shapes, shard_bytes)
    if len(groups) == 1:
        _write_shard(out / "model.safetensors", groups[0], values)
        return 1
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        name = f"model-{number:05}-of-{len(groups):05}.safetensors"
        _write_shard(out / name, group, values)
        weight_map |= dict.fromkeys(group, name)
    total = 2 * sum(math.prod(s) for s in shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return len(groups)


def _grouped(
    shapes: dict[str, tuple[int, ...]], shard_bytes: int
) -> list[dict[str, tuple[int, ...]]]:
    groups: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, shape in shapes.items():
        tensor_bytes = 2 * math.prod(shape)
        if groups[-1] and size + tensor_bytes > shard_bytes:
            groups.append({})
            size = 0
        groups[-1][name] = shape
        size += tensor_bytes
    return groups


def _write_shard(path: Path, shapes: dict[str, tuple[int, ...]], values: Values) -> None:
    """A safetensors file, header first and then one tensor after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            for some in values(name, shape):
                if some.any():
                    file.write(some.to(torch.bfloat16).view(torch.int16).numpy().data)
                else:
                    file.seek(2 * some.numel(), os.SEEK_CUR)
        file.truncate()


def _random_values(
    rng: torch.Generator, name: str, shape: tuple[int, ...]
) -> Iterator[torch.Tensor]:
    count = math.prod(shape)
    for start in range(0, count, ELEMENTS_AT_ONCE):
        values = torch.empty(min(ELEMENTS_AT_ONCE, count - start)).normal_(generator=rng)
        yield _scaled(values, name, shape)


def _repeated_values(rng: torch.Generator) -> Values:
    """As `_random_values`, of numbers that are drawn once."""
    # Rows of a matrix do not repeat: their lengths do not divide this.
    drawn = torch.empty(ELEMENTS_AT_ONCE - 3).normal_(generator=rng)
    scaled = (drawn * STD).to(torch.bfloat16)

    def values(name: str, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
        count = math.prod(shape)
        if len(shape) == 1:
            return iter([_scaled(drawn[:count], name, shape)])
        return (scaled[: count - start] for start in range(0, count, len(scaled)))

    return values


def _zeros_behind(drawn_bytes: float, values: Values) -> Values:
    """Those values for the matrices that begin within so many bytes, and zeros for the others."""
    begin = 0

    def some(name: str, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
        nonlocal begin
        is_drawn = len(shape) == 1 or begin < drawn_bytes
        begin += 2 * math.prod(shape)
        return values(name, shape) if is_drawn else _zeros(math.prod(shape))

    return some


def _zeros(count: int) -> Iterator[torch.Tensor]:
    for start in range(0, count, ELEMENTS_AT_ONCE):
        yield torch.zeros(1).expand(min(ELEMENTS_AT_ONCE, count - start))


def _scaled(values: torch.Tensor, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return values * STD if len(shape) > 1 or name.endswith("bias") else 1.0 + 0.1 * values


def write_byte_tokenizer(directory: Path, vocab_size: int, *, words: bool = False) -> None:
    """Writes a byte-level tokenizer.json: 256 bytes and the special tokens that fit.

    With `words` all further tokens have a text too, which no text is split into.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    if words:
        letters += [f"w{i}" for i in range(len(letters), vocab_size - len(SPECIAL_TOKENS))]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = SPECIAL_TOKENS[: max(0, vocab_size - len(letters))]
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(directory / "tokenizer.json"))
    names = dict(zip(("bos_token", "eos_token"), special, strict=False))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=sorted((*SHAPES, *RWKV_SHAPES)), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json to copy")
    parser.add_argument("--words", action="store_true", help="give every token a text, to serve it")
    parser.add_argument("--repeat", action="store_true", help="repeat numbers: quicker by far")
    parser.add_argument(
        "--drawn-gb", type=float, default=math.inf, metavar="GB",
        help="zeros, which take no room on a disk, for all behind the first GB",
    )  # fmt: skip
    args = parser.parse_args()
    sizes = make_model(
        args.out, args.shape, seed=args.seed, tokenizer=args.tokenizer, words=args.words,
        repeat=args.repeat, drawn_bytes=args.drawn_gb * 10**9,
    )  # fmt: skip
    print(json.dumps({"out": str(args.out), "shape": args.shape, **sizes}), file=sys.stdout)


if __name__ == "__main__":
    main()
