"""What a model is made of, in words. No torch."""

from __future__ import annotations

from collections.abc import Iterable

from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig


def features(config: ModelConfig) -> tuple[str, ...]:
    """What a model is made of: what every model has, then what only some have."""
    attention = [a.mixer for a in config.layers if isinstance(a.mixer, AttentionConfig)]
    kinds = [f"rotary embedding {rope.type}" for rope in config.ropes]
    kinds += ["learned positions"] if config.learned_positions else []
    windows = [window for window in config.windows if window]
    with_sinks = sum(mixer.sinks for mixer in attention)
    softcap = max((mixer.softcap for mixer in attention), default=0.0)
    parts = (part for layer in config.layers for part in (layer.mixer, layer.mlp))
    biased = ", ".join(dict.fromkeys(name for part in parts for name in part.biased))
    features = {
        f"{config.num_layers} layers of width {config.hidden_size}, "
        f"{_each(layer.mlp.described for layer in config.layers)}": True,
        _each(layer.mixer.described for layer in config.layers): True,
        f"vocabulary of {config.vocab_size}, {'tied' if config.tie_embeddings else 'separate'} "
        "head": True,
        f"{_each(kinds) or 'no embedding of positions'}, up to "
        f"{config.max_position_embeddings} positions": True,
        f"checkpoint in {config.checkpoint_dtype}": True,
        "norms before and after attention and MLP": config.placement == "sandwich",
        "queries and keys are normalised per head": any(a.qk_norm == "head" for a in attention),
        f"sliding window of {max(windows, default=0)} tokens in {len(windows)} layers": windows,
        f"attention sinks in {with_sinks} layers": with_sinks,
        f"scores are capped at {softcap:g}": softcap,
        f"logits are capped at {config.logit_softcap:g}": config.logit_softcap,
        f"biases: {biased}": biased,
    }
    return tuple(text for text, present in features.items() if present)


def _each(texts: Iterable[str]) -> str:
    """Different texts, each once."""
    return " and ".join(dict.fromkeys(texts))
