"""What `ingot explain` tells about a model directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from ingot.artifact.formats import Format, stored_bytes
from ingot.compiler.options import CompileOptions
from ingot.compiler.quantization.choose import BITS, base_storage, int8_storage
from ingot.compiler.resolve import resolve_dtype
from ingot.errors import CheckpointError, ConfigError, UnsupportedModelError
from ingot.models import registry
from ingot.models.blocks.embedding import Embedding
from ingot.models.checkpoint import Checkpoint
from ingot.models.config import ModelConfig
from ingot.models.config_file import check_model_dir, read_json_object


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


def explain(model_dir: Path) -> Explanation:
    """Whether a model directory is supported, why, and what it needs; reads no weights.

    Raises:
        ModelDirError: the directory or its config.json is missing or unreadable.
    """
    check_model_dir(model_dir)
    architecture = ""
    try:
        values = read_json_object(model_dir / "config.json")
        names = values.get("architectures")
        if isinstance(names, list) and names:
            architecture = str(names[0])
        config = registry.load_config(model_dir)
        module = registry.build(config, max_model_len=config.max_position_embeddings)
        Checkpoint.open(model_dir, config, module).close()
    except (ConfigError, CheckpointError, UnsupportedModelError) as error:
        reasons = (error.found, *([error.hint] if error.hint else []))
        refused = Explanation(supported=False, architecture=architecture, reasons=reasons)
        if architecture in registry.supported_architectures() or not architecture:
            return refused
        family, differing = registry.nearest_family(values)
        return replace(refused, nearest=family.architectures[0], differing=differing)
    return Explanation(
        supported=True,
        architecture=config.architecture,
        family=config.family,
        reasons=_features(config),
        num_parameters=sum(parameter.numel() for parameter in module.parameters()),
        bytes_by_dtype=dict(_weight_bytes(config, module)),
        kv_bytes_per_token=config.kv_bytes_per_token(
            stored_bytes(resolve_dtype("auto", config), 1)
        ),
    )


def _weight_bytes(config: ModelConfig, module: nn.Module) -> Iterator[tuple[str, int]]:
    """Bytes of the weights in every dtype, and in integers where blocks divide all rows."""
    tables = {f"{name}.weight" for name, b in module.named_modules() if isinstance(b, Embedding)}
    tables.add("lm_head.weight")
    for kind in ("bfloat16", "float32", *BITS):
        stored = [
            (_format(kind, config, parameter, is_table=name in tables), parameter)
            for name, parameter in module.named_parameters()
        ]
        if all(not form.is_scaled or p.shape[1] % form.block == 0 for form, p in stored):
            yield kind, sum(form.nbytes(p.numel()) for form, p in stored)


def _format(kind: str, config: ModelConfig, parameter: nn.Parameter, *, is_table: bool) -> Format:
    """How a parameter is stored by default; vectors stay float32, tables at least int8."""
    if parameter.ndim == 1:
        return Format("float32")
    if kind not in BITS:
        return Format("float32" if kind == "float32" else "bfloat16")
    options = CompileOptions(quantize=kind)
    storage = None if is_table else base_storage(options, config)
    return (storage or int8_storage(options, config)).of(parameter.shape[1])


def _features(config: ModelConfig) -> tuple[str, ...]:
    """What a model is made of: what every model has, then what only some have."""
    kinds = [f"rotary embedding {config.rope.type}"] if config.rope.rotates else []
    kinds += ["learned positions"] if config.learned_positions else []
    windows = [window for window in config.windows if window]
    with_sinks = sum(layer.sinks for layer in config.layers)
    biases = {
        "q, k, v": config.attention_bias,
        "attention output": config.o_bias,
        "MLP": config.mlp_bias,
    }
    biased = ", ".join(name for name, on in biases.items() if on)
    features = {
        f"{config.num_layers} layers of width {config.hidden_size}, "
        f"{config.mlp} MLP of {config.intermediate_size}": True,
        f"{config.num_heads} query heads over {config.num_kv_heads} key-value heads of "
        f"{config.head_dim}": True,
        f"vocabulary of {config.vocab_size}, {'tied' if config.tie_embeddings else 'separate'} "
        "head": True,
        f"{' and '.join(kinds) or 'no embedding of positions'}, up to "
        f"{config.max_position_embeddings} positions": True,
        f"checkpoint in {config.checkpoint_dtype}": True,
        "norms before and after attention and MLP": config.placement == "sandwich",
        "queries and keys are normalised per head": config.qk_norm,
        f"sliding window of {max(windows, default=0)} tokens in {len(windows)} layers": windows,
        f"attention sinks in {with_sinks} layers": with_sinks,
        f"scores are capped at {config.attention_softcap:g}": config.attention_softcap,
        f"logits are capped at {config.logit_softcap:g}": config.logit_softcap,
        f"biases: {biased}": biased,
    }
    return tuple(text for text, present in features.items() if present)
