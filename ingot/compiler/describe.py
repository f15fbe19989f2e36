"""Description of a compile in the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ingot.artifact.golden import format_name
from ingot.artifact.manifest import FORMAT_VERSION, Manifest, ModelInfo, Numerics, TargetEntry
from ingot.artifact.plan import Plan
from ingot.artifact.programs import main_of
from ingot.artifact.quality import Quality, VectorQuality
from ingot.artifact.target import Target
from ingot.compiler.front import Front
from ingot.compiler.model import OpenModel
from ingot.version import __version__


@dataclass(frozen=True, slots=True)
class Part:
    """One target's part of the artifact: its own plan of each program, and its manifest entry."""

    target: Target
    plans: dict[str, Plan]
    entry: TargetEntry

    @property
    def plan(self) -> Plan:
        """The plan of the main program."""
        return self.plans[main_of(self.plans)]


def describe(
    model: OpenModel,
    front: Front,
    parts: Sequence[Part],
    tolerance: float = 0.0,
    quality: Quality | VectorQuality | None = None,
) -> Manifest:
    """The manifest, without the hashes that the writer adds; `tolerance` is the goldens'."""
    return Manifest(
        format=FORMAT_VERSION,
        ingot_version=__version__,
        model=model_info(model, front),
        limits=model.resolved.limits,
        numerics=replace(numerics(model, front), tolerance=tolerance, **_measured(quality)),
        targets=tuple(part.entry for part in parts),
        ledger=front.ledger,
        pooler=model.pooler,
    )


def _measured(quality: Quality | VectorQuality | None) -> dict[str, Any]:
    return {"vectors" if isinstance(quality, VectorQuality) else "quality": quality}


def model_info(model: OpenModel, front: Front) -> ModelInfo:
    """The model in the words of the manifest."""
    config = model.config
    return ModelInfo(
        name=model.model_dir.name,
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        num_layers=config.num_layers,
        num_parameters=sum(parameter.numel() for parameter in model.module.parameters()),
        bos_token_ids=config.bos_token_ids,
        eos_token_ids=config.eos_token_ids,
        kv_bytes_per_token=front.plan.kv_bytes_per_token,
    )


def numerics(model: OpenModel, front: Front) -> Numerics:
    """Number formats of the model, in the words of the manifest."""
    return Numerics(dtype=model.resolved.dtype, quantization=front.quantization, tolerance=0.0)


def stored_format(model: OpenModel, front: Front) -> str:
    """The name by which goldens know how this compile stores numbers."""
    return format_name(numerics(model, front), int8_cache=model.resolved.kv_dtype == "int8")
