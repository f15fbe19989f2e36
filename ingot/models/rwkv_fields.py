"""Reads the config.json of RWKV-7 models, and the sizes that their tensors tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ingot.errors import ConfigError
from ingot.models.blueprint import Shape
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.fields import Fields
from ingot.models.file_names import HEAD_ROWS
from ingot.models.layer_config import LayerConfig
from ingot.models.layer_fields import read_num_layers
from ingot.models.rwkv_config import ChannelMixConfig, TimeMixConfig

OWN = "RWKV_x070"  # what BlinkDL calls the architecture
SPEECH = "RWKV7ForSpeech"  # reads texts and codes of sound, and speaks codes
TAGS = 3  # of it: what begins a voice, what it says, and a call
USUAL_LONGEST = 2**16  # tokens of a sequence, unless a compile asks for more: nothing counts them
WORLD_ROWS, END = 65536, 0  # of a model with the World vocabulary, and its token that ends a text
HEADS_EPS = 64e-5  # of BlinkDL's models, whatever the size of their heads
# What fla's own kernels are chosen by, and what training needs.
NOISE = (
    "attn_mode",
    "elementwise_affine",
    "fuse_cross_entropy",
    "fuse_linear_cross_entropy",
    "fuse_norm",
    "max_position_embeddings",
    "use_l2warp",
)


def read_rwkv(fields: Fields) -> ModelConfig:
    """Reads the config.json of fla's `RWKV7ForCausalLM`, or of BlinkDL's models."""
    for key in NOISE:
        fields.raw(key, None)
    _refuse_variants(fields)
    fields.spell(rms_norm_eps="norm_eps")
    fields.assume(
        hidden_size=2048,
        num_hidden_layers=24,
        vocab_size=32000,
        rms_norm_eps=1e-5,
        max_position_embeddings=USUAL_LONGEST,
    )
    mixer, size = _read_mixer(fields), _read_size(fields)
    mixers = (replace(mixer, value_rank=0), *(mixer,) * (read_num_layers(fields) - 1))
    ends = fields.token_ids("eos_token_id")
    if fields.integer("vocab_size") == WORLD_ROWS:
        ends = tuple(dict.fromkeys((*ends, END)))
    rows, parts = _read_rows(fields)
    if parts:
        ends = (parts[0] - 1,)
    return parse_decoder(
        fields,
        mixer=mixers,
        mlp=ChannelMixConfig(hidden_size=fields.integer("hidden_size"), size=size),
        norm="layer",
        norm_bias=fields.flag("norm_bias", True),
        embedding_norm=fields.flag("norm_first", True),
        max_position_embeddings=USUAL_LONGEST,
        vocab_size=rows,
        head_rows=parts[0] if parts else fields.integer(HEAD_ROWS, 0, minimum=0),
        embedding_parts=parts,
        eos_token_ids=ends,
    )


def _read_rows(fields: Fields) -> tuple[int, tuple[int, ...]]:
    """The rows of the embedding, and of the tables that it has one after the other: what the model
    speaks, tags, codes of a voice, and texts."""
    own = fields.integer("vocab_size")
    if fields.raw("architectures", None) != [SPEECH]:
        return own, ()
    parts = (
        own,
        TAGS,
        fields.integer("audio_global_vocab_size", 4096),
        fields.integer("text_vocab_size", WORLD_ROWS),
    )
    return sum(parts), parts


def _refuse_variants(fields: Fields) -> None:
    fields.refuse("attn", (None,), "supported: models without layers of attention")
    fields.refuse("hidden_act", ("sqrelu",), "supported: sqrelu")
    hidden, widths = fields.integer("hidden_size", 2048), fields.raw("value_dim", None)
    for width in widths if isinstance(widths, list) else [widths]:
        if width not in (None, hidden):
            fault = fields.wrong("value_dim", widths, f"hidden_size, which is {hidden}")
            fields.fault(fault, "value_dim")
            return


def _read_mixer(fields: Fields) -> TimeMixConfig:
    """The mixer of all layers but the first. Ranks that are not given follow from the width."""
    hidden = fields.integer("hidden_size")
    if fields.is_null("head_dim"):
        fields.assume(head_dim=max(1, hidden // fields.integer("num_heads")))
    head_dim = fields.integer("head_dim", 64, maximum=2**16)
    heads = max(1, hidden // head_dim)
    fields.refuse("num_heads", (heads,), f"head_dim and hidden_size make {heads} heads")
    if hidden % head_dim and fields.sound("hidden_size", "head_dim"):
        fault = ConfigError(
            f"hidden_size {hidden} is not a multiple of head_dim {head_dim}",
            hint="correct one of the two in config.json",
        )
        fields.fault(fault, "head_dim")

    def rank(name: str, by_root: float) -> int:
        usual = 32 * max(1, round(by_root * hidden**0.5 / 32))
        return fields.integer(f"{name}_low_rank_dim", usual, maximum=2**16)

    grown = head_dim / 64
    own = fields.raw("architectures", None) == [OWN]
    eps = fields.number("rms_norm_eps")
    return TimeMixConfig(
        num_heads=heads,
        head_dim=head_dim,
        decay_rank=rank("decay", 2.5 * grown),
        rate_rank=rank("a", 2.5 * grown),
        value_rank=rank("v", 1.7 * grown),
        gate_rank=rank("gate", 5.0),
        norm_eps=HEADS_EPS if own else head_dim * eps,
    )


def _read_size(fields: Fields) -> int:
    """Width between key and value of channel mixing; by default a multiple of 32."""
    ratio = fields.number("hidden_ratio", 4.0)
    usual = -32 * int(-fields.integer("hidden_size") * ratio // 32)
    return fields.integer("intermediate_size", max(usual, 1))


def sized(config: ModelConfig, shapes: Mapping[str, Shape]) -> ModelConfig:
    """A config whose ranks, and width of channel mixing, are those of the tensors."""

    def layer(index: int, given: LayerConfig) -> LayerConfig:
        mixer, mlp, ranks = given.mixer, given.mlp, {}
        assert isinstance(mixer, TimeMixConfig) and isinstance(mlp, ChannelMixConfig)
        for name, letter in (("decay", "w"), ("rate", "a"), ("value", "v"), ("gate", "g")):
            fla = shapes.get(f"model.layers.{index}.attn.{letter}_lora.lora.0.weight", ())
            own = shapes.get(f"blocks.{index}.att.{letter}1", ())[::-1]
            if (shape := fla or own) and (index or name != "value"):
                ranks[f"{name}_rank"] = shape[0]
        for key in (f"model.layers.{index}.ffn.key.weight", f"blocks.{index}.ffn.key.weight"):
            if shape := shapes.get(key, ()):
                mlp = replace(mlp, size=shape[0])
        return replace(given, mixer=replace(mixer, **ranks), mlp=mlp)

    return replace(config, layers=tuple(map(layer, range(config.num_layers), config.layers)))
