"""What a model is made of, in words. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig, Placement

# Where norms stand, if not before attention and MLP alone.
PLACEMENTS: Mapping[Placement, str] = {
    "sandwich": "norms before and after attention and MLP",
    "post": "norms after attention and MLP",
    "parallel": "attention and MLP side by side, on one norm",
    "parallel_pair": "attention and MLP side by side, on a norm each",
}


def features(config: ModelConfig) -> tuple[str, ...]:
    """What a model is made of: what every model has, then what only some have."""
    attention = [a.mixer for a in config.layers if isinstance(a.mixer, AttentionConfig)]
    kinds = [_rotation(config)] if config.ropes else []
    kinds += ["learned positions"] if config.learned_positions else []
    norms = {mixer.qk_norm for mixer in attention}
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
        PLACEMENTS.get(config.placement, ""): config.placement in PLACEMENTS,
        "queries and keys are normalised per head": norms & {"head", "each_head"},
        "queries and keys are normalised over their whole width": "full" in norms,
        f"sliding window of {max(windows, default=0)} tokens in {len(windows)} layers": windows,
        f"attention sinks in {with_sinks} layers": with_sinks,
        f"scores are capped at {softcap:g}": softcap,
        f"logits are capped at {config.logit_softcap:g}": config.logit_softcap,
        f"biases: {biased}": biased,
    }
    return tuple(text for text, present in features.items() if present)


def _rotation(config: ModelConfig) -> str:
    """How layers rotate, and how many of them if not all do."""
    kinds = _each(rope.type for rope in config.ropes)
    rotating = sum(bool(layer.mixer.ropes) for layer in config.layers)
    some = f" in {rotating} of {config.num_layers} layers" if rotating < config.num_layers else ""
    return f"rotary embedding {kinds}{some}"


def _each(texts: Iterable[str]) -> str:
    """Different texts, each once."""
    return " and ".join(dict.fromkeys(texts))
