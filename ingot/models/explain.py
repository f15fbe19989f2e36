"""What `ingot explain` tells about a model directory."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from ingot.models.config import ModelConfig

# Bytes a weight where nothing else is asked for and 128 divides the rows.
INT8_BYTES = 1 + 2 / 128
INT4_BYTES = 4.25 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Whether a model directory is supported, why, and what it needs.

    Attributes:
        supported: whether it can be compiled; the sizes below are 0 or empty if not.
        architecture: class name in config.json; family: name of the family that builds it.
        reasons: what the model is made of, or why it is not supported.
        nearest: the nearest supported architecture of an unknown one.
        differing: keys of config.json that the nearest family does not know or take.
        num_parameters: parameters, a tied matrix counted once.
        bytes_by_dtype: bytes of the weights when compiled for that dtype, or quantized in the
            default groups; vectors stay float32.
        kv_bytes_per_token: bytes of the KV cache per token, in the dtype that "auto" compiles for.
    """

    supported: bool
    architecture: str
    family: str = ""
    reasons: tuple[str, ...] = ()
    nearest: str = ""
    differing: tuple[str, ...] = ()
    num_parameters: int = 0
    bytes_by_dtype: dict[str, int] = field(default_factory=dict)
    kv_bytes_per_token: int = 0


def describe(config: ModelConfig, module: nn.Module) -> Explanation:
    """The explanation of a supported model."""
    sizes = [(p.numel(), p.ndim) for p in module.parameters()]
    element_bytes = 4 if config.checkpoint_dtype == "float32" else 2
    return Explanation(
        supported=True,
        architecture=config.architecture,
        family=config.family,
        reasons=_features(config),
        num_parameters=sum(count for count, _ in sizes),
        bytes_by_dtype={
            "bfloat16": sum(count * (2 if ndim > 1 else 4) for count, ndim in sizes),
            "float32": sum(4 * count for count, _ in sizes),
            **_quantized_bytes(config, sizes),
        },
        kv_bytes_per_token=config.kv_bytes_per_token(element_bytes),
    )


def _quantized_bytes(config: ModelConfig, sizes: list[tuple[int, int]]) -> dict[str, int]:
    """Bytes with matrices in int8 and int4; embedding and head are int8 either way."""
    matrices = sum(count for count, ndim in sizes if ndim > 1)
    vectors = 4 * sum(count for count, ndim in sizes if ndim == 1)
    table = config.vocab_size * config.hidden_size
    outer = table if config.tie_embeddings else 2 * table
    return {
        "int8": vectors + round(matrices * INT8_BYTES),
        "int4": vectors + round(outer * INT8_BYTES + (matrices - outer) * INT4_BYTES),
    }


def _features(config: ModelConfig) -> tuple[str, ...]:
    head = "tied" if config.tie_embeddings else "separate"
    features = [
        f"{config.num_layers} layers of width {config.hidden_size}, MLP {config.intermediate_size}",
        f"{config.num_heads} query heads over {config.num_kv_heads} key-value heads of "
        f"{config.head_dim}",
        f"vocabulary of {config.vocab_size}, {head} head",
        f"rotary embedding {config.rope.type}, up to {config.max_position_embeddings} positions",
        f"checkpoint in {config.checkpoint_dtype}",
    ]
    if config.qk_norm:
        features.append("queries and keys are normalised per head")
    if windows := [window for window in config.windows if window]:
        features.append(f"sliding window of {max(windows)} tokens in {len(windows)} layers")
    biases = {
        "q, k, v": config.attention_bias,
        "attention output": config.o_bias,
        "MLP": config.mlp_bias,
    }
    if any(biases.values()):
        features.append(f"biases: {', '.join(name for name, on in biases.items() if on)}")
    return tuple(features)
