"""What modules are made of: their parts, and the names and shapes of their parameters. No torch.

Shapes are stated here alone: the blocks make the parameters of these blueprints. So the size of a
model, and whether a checkpoint fits it, can be told without building it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ingot.models.config import LayerConfig, MlpKind, ModelConfig

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """A module before it is built.

    Attributes:
        shapes: its own parameters.
        constants: its buffers whose values follow from the config.
        parts: the modules in it, in the order in which they run.
        stacked: the linears among them that read the same rows; the compiler makes one of them.
        multiplied: rows are multiplied with its weight.
        outer: it is an embedding or the head.
        exact: its weights are never integers.
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    constants: Mapping[str, Shape] = field(default_factory=dict)
    parts: Mapping[str, Blueprint] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()
    multiplied: bool = False
    outer: bool = False
    exact: bool = False

    def modules(self, path: str = "") -> Iterator[tuple[str, Blueprint]]:
        """This module and all below it, by their dotted paths."""
        yield path, self
        for name, part in self.parts.items():
            yield from part.modules(f"{path}.{name}" if path else name)

    @property
    def parameters(self) -> dict[str, Shape]:
        """Every parameter by its dotted name."""
        return {
            f"{path}.{name}" if path else name: shape
            for path, part in self.modules()
            for name, shape in part.shapes.items()
        }


def linear(
    columns: int, rows: int, *, bias: bool = False, outer: bool = False, exact: bool = False
) -> Blueprint:
    """A product with a matrix [rows, columns]."""
    shapes: dict[str, Shape] = {"weight": (rows, columns)}
    shapes |= {"bias": (rows,)} if bias else {}
    return Blueprint(shapes=shapes, multiplied=True, outer=outer, exact=exact)


def embedding(rows: int, width: int, *, multiplied: bool = False) -> Blueprint:
    """A table of rows; of a tied one the head is a product with it."""
    return Blueprint(shapes={"weight": (rows, width)}, multiplied=multiplied, outer=True)


def rms_norm(size: int) -> Blueprint:
    """A norm with a weight."""
    return Blueprint(shapes={"weight": (size,)})


def layer_norm(size: int, *, bias: bool = True) -> Blueprint:
    """A norm with a weight and, mostly, a bias."""
    return Blueprint(shapes={"weight": (size,)} | ({"bias": (size,)} if bias else {}))


def norm(config: ModelConfig, size: int) -> Blueprint:
    """The norm that a config asks for, over so many columns."""
    return layer_norm(size) if config.norm == "layer" else rms_norm(size)


def attention(config: ModelConfig, layer: LayerConfig) -> Blueprint:
    """Projections, norms of q and k per head, sinks."""
    hidden, bias = config.hidden_size, config.attention_bias
    parts = {
        "q_proj": linear(hidden, config.q_size, bias=bias),
        "k_proj": linear(hidden, config.kv_size, bias=bias),
        "v_proj": linear(hidden, config.kv_size, bias=bias),
    }
    stacked = tuple(parts)
    if config.qk_norm:
        parts |= {name: norm(config, config.head_dim) for name in ("q_norm", "k_norm")}
    parts["o_proj"] = linear(config.q_size, hidden, bias=config.o_bias)
    sinks: dict[str, Shape] = {"sinks": (config.num_heads,)} if layer.sinks else {}
    return Blueprint(shapes=sinks, parts=parts, stacked=stacked)


def gated_mlp(config: ModelConfig) -> Blueprint:
    """Gate and up, which read the same rows, and down."""
    hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    parts = {
        "gate_proj": linear(hidden, inner, bias=bias),
        "up_proj": linear(hidden, inner, bias=bias),
        "down_proj": linear(inner, hidden, bias=bias),
    }
    return Blueprint(parts=parts, stacked=("gate_proj", "up_proj"))


def plain_mlp(config: ModelConfig) -> Blueprint:
    """Up and down."""
    hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    up, down = linear(hidden, inner, bias=bias), linear(inner, hidden, bias=bias)
    return Blueprint(parts={"up_proj": up, "down_proj": down})


_MLPS: Mapping[MlpKind, Callable[[ModelConfig], Blueprint]] = {
    "gated": gated_mlp,
    "plain": plain_mlp,
}


def decoder_layer(config: ModelConfig, layer: LayerConfig) -> Blueprint:
    """Attention and MLP with the norms around them."""
    width = norm(config, config.hidden_size)
    parts = {
        "input_layernorm": width,
        "self_attn": attention(config, layer),
        "post_attention_layernorm": width,
    }
    mlp = _MLPS[config.mlp](config)
    if config.placement == "sandwich":
        parts |= {
            "pre_feedforward_layernorm": width,
            "mlp": mlp,
            "post_feedforward_layernorm": width,
        }
    return Blueprint(parts=parts | {"mlp": mlp})


def decoder(config: ModelConfig) -> Blueprint:
    """Embeddings, layers and final norm."""
    width, rope = config.hidden_size, config.rope
    parts = {"embed_tokens": embedding(config.vocab_size, width, multiplied=config.tie_embeddings)}
    if config.learned_positions:
        parts["embed_positions"] = embedding(config.max_position_embeddings, width)
    made = {layer: decoder_layer(config, layer) for layer in set(config.layers)}
    layers = {str(index): made[layer] for index, layer in enumerate(config.layers)}
    parts |= {"layers": Blueprint(parts=layers), "norm": norm(config, width)}
    if rope.rotates:
        parts["rotary_emb"] = Blueprint(constants={"inv_freq": (rope.rotary_dim // 2,)})
    return Blueprint(parts=parts)


def causal_lm(config: ModelConfig) -> Blueprint:
    """Decoder and head. A tied head has no parameter of its own."""
    parts = {"model": decoder(config)}
    if not config.tie_embeddings:
        parts["lm_head"] = linear(config.hidden_size, config.vocab_size, outer=True)
    return Blueprint(parts=parts)
