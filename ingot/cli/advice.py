"""Advice on how to store a model that does not fit into memory as it is."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingot.compiler.explain import Explanation

# What formats chosen by measurement cost a small model: mean bits of a weight, and the mean KL of
# SmolLM2-135M in nats (docs/quantization_curve.json). Larger models lose less.
MEASURED = (
    (4.4, 0.153),
    (4.5, 0.134),
    (5.0, 0.0739),
    (5.5, 0.0458),
    (6.0, 0.0229),
    (7.0, 0.00869),
    (8.0, 0.00338),
)
FEWEST_BITS = MEASURED[0][0]


def advice(explanation: Explanation) -> str:
    """Options of a compile that fit beside the cache, and what they cost a small model; empty where
    the model fits anyhow, or nothing would."""
    plain = next((way for way in explanation.ways if way.default and way.caches), None)
    memory = explanation.memory_bytes
    if plain is None or memory is None or plain.caches[0].fits or plain.matrices:
        return ""
    room = memory - (plain.caches[0].total_bytes - plain.weight_bytes)
    bits = 8 * room / explanation.num_parameters
    if bits < FEWEST_BITS:
        return ""
    fits = f"--quantize auto --max-bytes {room // 10**6}MB fits beside the cache"
    loses = f"SmolLM2-135M loses about {usual_kl(bits):.1g} nats at that, larger models less"
    return f"{fits}, at {bits:.1f} bits a weight; {loses}"


def usual_kl(bits: float) -> float:
    """The mean KL of a small model in so many bits, between measured points and as at the ends."""
    for (low, dear), (high, cheap) in pairwise(MEASURED):
        if bits < high:
            share = max(bits - low, 0.0) / (high - low)
            return exp(log(dear) + share * (log(cheap) - log(dear)))
    return MEASURED[-1][1]
