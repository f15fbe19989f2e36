"""The canonical description of a model, whatever spelling its `config.json` used.

`ModelConfig` is frozen and complete: it holds every number that a graph, a plan or the runtime
needs, and nothing in it is optional. Values that cannot be together
raise `ContradictionError`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ingot.errors import ContradictionError
from ingot.models.attention_config import AttentionConfig
from ingot.models.family import USUAL, Family
from ingot.models.head_config import HeadConfig
from ingot.models.latent_config import LatentConfig
from ingot.models.layer_config import LayerConfig, Mixer
from ingot.models.moe_config import MoeConfig
from ingot.models.rope import RopeConfig

NormKind = Literal["rms", "layer"]
Placement = Literal["pre", "post", "sandwich", "sums", "parallel", "parallel_pair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model of text, canonical and complete: a decoder, or one that reads whole texts.

    Attributes:
        family: the family that builds it and names its tensors.
        architecture: the checkpoint's own class name.
        hidden_size: width of the residual stream.
        layers: what each layer consists of.
        norm: kind of every norm; norm_eps: epsilon of every norm.
        norm_offset: added to the weight of every RMS norm; norm_bias: layer norms have a bias.
        placement: where the norms of a layer stand: before mixer and MLP, after each, both, or
            after each is added to the stream (sums). Or mixer and MLP run side by side, on one norm
            (parallel) or each on its own.
        embedding_norm: embeddings are normalised. final_norm: so is what the last layer gives.
        max_position_embeddings: the longest sequence that the model was made for.
        learned_positions: embeddings of positions are added to those of tokens.
        token_types: how many sorts of tokens there are, each with embeddings of positions of its
            own: type t at position p has row t * max_position_embeddings + p.
        embedding_scale: what the embeddings of tokens are multiplied by.
        embedding_parts: rows of the tables that the embedding has one after the other in the
            checkpoint; none where it is one table.
        tie_embeddings: the head is the embedding matrix.
        head_rows: tokens that the head gives logits for, the first ones; 0: for all. A model with
            fewer than all speaks in codes that it reads otherwise: it has no tokenizer.
        logit_scale: what logits are multiplied by; logit_softcap: their bound, 0 is none.
        head: what is made of a whole text, instead of logits for each token; None of a decoder.
        mtp_layers: layers of the checkpoint after these, which predict further tokens; unused.
        bos_token_ids, eos_token_ids: from config.json and generation_config.json together.
        checkpoint_dtype: dtype that the checkpoint says its weights have.
        quantization: the format in which the checkpoint stores matrices quantized; "" for none.

    Raises:
        ContradictionError: values that contradict each other or that nothing here can run.
    """

    # Keys are made of the text of a config, and that of a function differs in every process.
    family: Family = field(default=USUAL, repr=False)
    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerConfig, ...]
    norm: NormKind = "rms"
    norm_eps: float
    norm_offset: float = 0.0
    norm_bias: bool = True
    placement: Placement = "pre"
    embedding_norm: bool = False
    final_norm: bool = True
    max_position_embeddings: int
    learned_positions: bool = False
    token_types: int = 1
    embedding_scale: float = 1.0
    embedding_parts: tuple[int, ...] = ()
    tie_embeddings: bool
    head_rows: int = 0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    head: HeadConfig | None = None
    mtp_layers: int = 0
    bos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    checkpoint_dtype: str
    quantization: str = ""

    def __post_init__(self) -> None:
        for layer in dict.fromkeys(self.layers):
            layer.check()
            self._check_norms(layer)
        for name in ("bos_token_ids", "eos_token_ids"):
            for token in getattr(self, name):
                if not 0 <= token < self.vocab_size:
                    raise ContradictionError(
                        f"{name.removesuffix('s')} {token} lies outside the vocabulary of "
                        f"{self.vocab_size} tokens",
                        hint="correct the id in config.json or generation_config.json",
                    )

    def _check_norms(self, layer: LayerConfig) -> None:
        if self.placement.startswith("parallel") and len(layer.parts) < 2:
            raise ContradictionError(
                "a layer whose mixer and MLP run side by side has one of them alone",
                hint="supported: layers of one part whose parts follow on each other",
            )
        mixer = layer.mixer
        each_head = isinstance(mixer, AttentionConfig) and mixer.qk_norm == "each_head"
        if each_head and (self.norm != "layer" or self.norm_bias):
            raise ContradictionError(
                f"{self.norm} norms have a weight for each head",
                hint="supported: layer norms without bias",
            )

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def num_logits(self) -> int:
        """Number of tokens that the head gives logits for."""
        return self.head_rows or self.vocab_size

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixers of the layers that have one."""
        return tuple(layer.mixer for layer in self.layers if layer.mixer is not None)

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of every layer that attends; 0 is all."""
        return tuple(mixer.window for mixer in self.mixers if mixer.cached)

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The ways in which some layer rotates, each once, in the order of the layers."""
        return tuple(dict.fromkeys(rope for mixer in self.mixers for rope in mixer.ropes))

    @property
    def largest_head(self) -> int:
        """The largest size of a head that any layer caches; 0 of a model without such layers."""
        heads = (head for m in self.mixers if not isinstance(m, LatentConfig) for head in m.cached)
        return max((size for _, size in heads), default=0)

    @property
    def has_experts(self) -> bool:
        """True if any layer routes tokens to some of many MLPs."""
        return any(isinstance(layer.mlp, MoeConfig) for layer in self.layers)

    @property
    def largest_row(self) -> int:
        """The most values that latent attention caches of a token in a layer; 0 without it."""
        return max((mixer.row_size for mixer in self._latents), default=0)

    @property
    def largest_rank(self) -> int:
        """The widest vector of keys and values that such a row begins with; 0 without it."""
        return max((mixer.rank for mixer in self._latents), default=0)

    @property
    def _latents(self) -> list[LatentConfig]:
        return [mixer for mixer in self.mixers if isinstance(mixer, LatentConfig)]

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes that one token takes in the KV cache of all layers."""
        cached = (heads * size for mixer in self.mixers for heads, size in mixer.cached)
        return sum(cached) * element_bytes

    @property
    def counts_no_tokens(self) -> bool:
        """True if nothing in the model depends on how many tokens a sequence has."""
        return not (self.learned_positions or any(mixer.cached for mixer in self.mixers))

    @property
    def record_bytes(self) -> int:
        """Bytes of the records that all layers keep of a sequence, in float32."""
        parts = (part for layer in self.layers for part in layer.parts)
        records = (record for part in parts for record in part.records)
        return 4 * sum(rows * columns for rows, columns in records)
