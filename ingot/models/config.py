"""The canonical description of a model, whatever spelling its `config.json` used.

`ModelConfig` is frozen and complete: it holds every number that a graph, a plan or the runtime
needs, and nothing in it is optional. Values that cannot be together
raise `ContradictionError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ingot.errors import ContradictionError

RopeType = Literal["none", "default", "linear", "dynamic", "llama3", "yarn", "longrope"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
NormKind = Literal["rms", "layer"]
Placement = Literal["pre", "sandwich"]
MlpKind = Literal["gated", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding with every default resolved.

    Attributes:
        type: how the frequencies are stretched beyond the trained length; "none" rotates nothing.
        theta: base of the geometric series of frequencies.
        rotary_dim: how many leading dimensions of a head are rotated; the rest pass through.
        factor: stretch of the context (linear, dynamic, llama3, yarn).
        original_max_position_embeddings: trained length that the stretch starts from.
        attention_factor: what cos and sin are multiplied by (yarn, longrope).
        low_freq_factor, high_freq_factor: band that llama3 blends over.
        beta_fast, beta_slow, truncate: band that yarn blends over, rounded outwards or not.
        short_factor, long_factor: divisors per frequency (longrope), rotary_dim / 2 of each.
    """

    type: RopeType = "default"
    theta: float = 10000.0
    rotary_dim: int
    factor: float = 1.0
    original_max_position_embeddings: int
    attention_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @property
    def rotates(self) -> bool:
        """Whether queries and keys are rotated at all."""
        return self.type != "none"


NO_ROPE = RopeConfig(type="none", rotary_dim=0, original_max_position_embeddings=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """What a decoder layer has of its own.

    Attributes:
        window: how many tokens back a query sees, itself included; 0 is all.
        attention_scale: what scores are multiplied by.
        sinks: every query head has a learned logit that takes part in its softmax, without a value.
    """

    window: int = 0
    attention_scale: float
    sinks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only language model, canonical and complete.

    Attributes:
        family: the family that builds it; architecture: the checkpoint's own class name.
        layers: what each decoder layer has of its own.
        num_heads, num_kv_heads: query heads, and the key and value heads that they share.
        head_dim: size of one head, any multiple of 4, independent of hidden_size.
        mlp: a gated MLP or a plain one; hidden_act: the activation in it.
        norm: kind of every norm; norm_eps: epsilon of every norm.
        norm_offset: added to the weight of every RMS norm.
        placement: a norm before attention and MLP, or one before and one after each.
        max_position_embeddings: the longest sequence that the model was made for.
        learned_positions: embeddings of positions are added to those of tokens.
        embedding_scale: what the embeddings of tokens are multiplied by.
        tie_embeddings: the head is the embedding matrix.
        qk_norm: queries and keys are normalised per head before the rotation.
        attention_bias, o_bias, mlp_bias: biases of q/k/v, of the output, of the MLP.
        attention_softcap, logit_softcap: bounds of scores and of logits; 0 is none.
        bos_token_ids, eos_token_ids: from config.json and generation_config.json together.
        checkpoint_dtype: dtype that the checkpoint says its weights have.
        quantization: the format in which the checkpoint stores matrices quantized; "" for none.

    Raises:
        ContradictionError: values that contradict each other or that nothing here can run.
    """

    family: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerConfig, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp: MlpKind = "gated"
    hidden_act: Activation
    norm: NormKind = "rms"
    norm_eps: float
    norm_offset: float = 0.0
    placement: Placement = "pre"
    max_position_embeddings: int
    learned_positions: bool = False
    embedding_scale: float = 1.0
    tie_embeddings: bool
    qk_norm: bool = False
    attention_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    rope: RopeConfig
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    bos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    checkpoint_dtype: str
    quantization: str = ""

    def __post_init__(self) -> None:
        self._check_heads()
        if self.rope.rotates:
            self._check_rope()
        for name in ("bos_token_ids", "eos_token_ids"):
            for token in getattr(self, name):
                if not 0 <= token < self.vocab_size:
                    raise ContradictionError(
                        f"{name.removesuffix('s')} {token} lies outside the vocabulary of "
                        f"{self.vocab_size} tokens",
                        hint="correct the id in config.json or generation_config.json",
                    )

    def _check_heads(self) -> None:
        if self.head_dim <= 0 or self.head_dim % 4:
            raise ContradictionError(
                f"head_dim is {self.head_dim}",
                hint="supported: any positive multiple of 4",
            )
        if self.num_heads % self.num_kv_heads:
            raise ContradictionError(
                f"num_attention_heads {self.num_heads} is not a multiple of "
                f"num_key_value_heads {self.num_kv_heads}",
                hint="every key-value head must serve the same number of query heads",
            )

    def _check_rope(self) -> None:
        dim = self.rope.rotary_dim
        if not 2 <= dim <= self.head_dim or dim % 2:
            raise ContradictionError(
                f"partial_rotary_factor rotates {dim} of head_dim {self.head_dim} dimensions",
                hint="supported: an even number from 2 to head_dim",
            )
        if self.rope.type == "dynamic" and dim == 2:
            raise ContradictionError(
                "rope type dynamic needs more than 2 rotated dimensions",
                hint="use another rope type or a larger head_dim",
            )
        for name in ("short_factor", "long_factor"):
            factors = getattr(self.rope, name)
            if self.rope.type == "longrope" and len(factors) != dim // 2:
                raise ContradictionError(
                    f"{name} has {len(factors)} values",
                    hint=f"longrope needs one per frequency: {dim // 2}, half of the "
                    f"{dim} rotated dimensions",
                )

    @property
    def num_layers(self) -> int:
        """How many decoder layers the model has."""
        return len(self.layers)

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of every layer; 0 is all."""
        return tuple(layer.window for layer in self.layers)

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads, or of all value heads, together."""
        return self.num_kv_heads * self.head_dim

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes that one token takes in the KV cache of all layers."""
        return 2 * self.num_layers * self.kv_size * element_bytes
