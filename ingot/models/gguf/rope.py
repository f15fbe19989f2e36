"""The rotary embedding of a GGUF file, in the spelling of config.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.errors import UnsupportedModelError
from ingot.models.gguf.metadata import Metadata

ReadFloats = Callable[[str], NDArray[np.float32]]

# Tensors that are no weights: what the frequencies of a head are divided by.
FREQS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
# The band over which Llama 3 stretches frequencies; of it a file keeps the result alone.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MSCALES = frozenset({"mscale", "mscale_all_dim"})
_OF_YARN = {
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "attention_factor": "rope.scaling.yarn_attn_factor",
    **dict.fromkeys(sorted(MSCALES), "rope.scaling.yarn_log_multiplier"),
    "llama_4_scaling_beta": "attention.temperature_scale",
}
YARN = "yarn"
EVENLY = "linear"  # how the file calls positions that are divided by a factor


def rope_scaling(metadata: Metadata, read: ReadFloats, theta: float) -> dict[str, Any] | None:
    """The object `rope_scaling`; None where frequencies are not stretched.

    Args:
        read: gives the numbers of a tensor.

    Raises UnsupportedModelError for a kind of stretching that is not known.
    """
    kind = metadata.values.get(f"{metadata.architecture}.rope.scaling.type", "none")
    if metadata.has(FREQS):
        return _from_divisors(metadata, read(FREQS), theta)
    if metadata.has(LONG, SHORT):
        return _longrope(metadata, read)
    factor = metadata.of_model("rope.scaling.factor", None)
    if kind == EVENLY or (kind == "none" and factor is None):
        factor = factor or metadata.of_model("rope.scale_linear", 1.0)
        return None if factor in (0.0, 1.0) else {"rope_type": "linear", "factor": float(factor)}
    if kind == "none":
        return None
    if kind != YARN:
        raise UnsupportedModelError(
            f"{metadata.path} stretches its rotary embedding by {kind!r:.40}",
            hint="supported: none, linear, yarn, and longrope with its factors as tensors",
        )
    found = {key: metadata.of_model(name, None) for key, name in _OF_YARN.items()}
    original = metadata.of_model("rope.scaling.original_context_length")
    return {
        "rope_type": YARN,
        "factor": float(factor or 1.0),
        "original_max_position_embeddings": int(original),
    } | {key: float(value) for key, value in found.items() if value}


def _longrope(metadata: Metadata, read: ReadFloats) -> dict[str, Any]:
    original = metadata.of_model("rope.scaling.original_context_length")
    scaling = {
        "rope_type": "longrope",
        "long_factor": _shortest(read(LONG)),
        "short_factor": _shortest(read(SHORT)),
        "original_max_position_embeddings": int(original),
        "factor": metadata.of_model("context_length") / max(int(original), 1),
    }
    attention = metadata.of_model("rope.scaling.attn_factor", None)
    return scaling if attention is None else scaling | {"attention_factor": float(attention)}


def _from_divisors(
    metadata: Metadata, divisors: NDArray[np.float32], theta: float
) -> dict[str, Any] | None:
    """Llama 3's rule where it gives these divisors, or the divisors themselves."""
    if (divisors == 1.0).all():
        return None
    factor = float(divisors.max(initial=1.0))
    if factor > 1.0 and np.allclose(divisors, _llama3(len(divisors), factor, theta), rtol=1e-5):
        return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
    every = _shortest(divisors)
    return {
        "rope_type": "longrope",
        "long_factor": every,
        "short_factor": every,
        "attention_factor": 1.0,
        "factor": 1.0,
        "original_max_position_embeddings": int(metadata.of_model("context_length")),
    }


def _llama3(count: int, factor: float, theta: float) -> NDArray[np.float64]:
    """Divisors that Llama 3 has for so many frequencies."""
    low, high, original = _LLAMA3.values()
    lengths = 2 * np.pi * theta ** (np.arange(count) / count)
    share = (original / lengths - low) / (high - low)
    between = 1 / ((1 - share) / factor + share)
    return np.where(lengths < original / high, 1.0, np.where(share < 0, factor, between))


def _shortest(values: NDArray[np.float32]) -> list[float]:
    """The shortest decimals that stand for these numbers."""
    return [float(str(value)) for value in values]
