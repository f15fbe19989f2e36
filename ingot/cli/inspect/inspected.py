"""Facts of one target of an artifact, for the text, JSON and page of `ingot inspect`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ingot.artifact.manifest import TargetEntry
from ingot.artifact.plan import Plan
from ingot.artifact.programs import STEP, meaning_of
from ingot.artifact.reader import weights_name
from ingot.cli.inspect.bits import BitsByLayer, bits_by_layer
from ingot.cli.inspect.layers import LayerView, layer_views
from ingot.cli.inspect.measured import Measured
from ingot.cli.inspect.memory import MemoryNeed, memory_need
from ingot.cli.inspect.numerics import NumericDifference, StoredAs, differences, weight_formats
from ingot.cli.inspect.view import ArtifactView, kernel_counts, live_bytes

if TYPE_CHECKING:
    from ingot.runtime.verify import Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """An artifact, one of its targets, and a program of that.

    Attributes:
        measured: what a bench gave; None where nobody has measured.
        verified: what replaying the golden prompts on this host gave; None unless asked for.
    """

    view: ArtifactView
    target: str
    program: str = STEP.name
    measured: Measured | None = None
    verified: Verification | None = None

    @property
    def plan(self) -> Plan:
        return self.view.programs[self.target][self.program]

    @property
    def entry(self) -> TargetEntry:
        (entry,) = (each for each in self.view.manifest.targets if each.name == self.target)
        return entry

    @property
    def memory(self) -> MemoryNeed:
        return memory_need(self.view, self.target)

    @property
    def weight_bytes(self) -> int:
        """Size of the weight file that the target reads; other targets may read another."""
        return self.view.manifest.files[weights_name(self.entry.layout)].size

    @property
    def weights(self) -> tuple[StoredAs, ...]:
        return weight_formats(self.plan)

    @property
    def bits(self) -> tuple[BitsByLayer, ...]:
        return bits_by_layer(self.plan)

    @property
    def differences(self) -> tuple[NumericDifference, ...]:
        return differences(self.view.manifest, self.plan)

    @property
    def layers(self) -> tuple[LayerView, ...] | None:
        """One layer of each kind; None where the artifact keeps no graphs."""
        manifest, graphs = self.view.manifest, self.view.layers
        ledger = manifest.ledger_of(manifest.main)
        return None if graphs is None else layer_views(graphs, ledger, self.plan)


def as_object(found: Inspected) -> dict[str, Any]:
    """Everything that is known, for programs."""
    view, need = found.view, found.memory
    return {
        "artifact": view.path,
        "manifest": view.manifest,
        "folder_bytes": view.folder_bytes(),
        "target": found.target,
        "program": found.program,
        "programs": {
            name: _program(meaning_of(name), plan)
            for name, plan in view.programs[found.target].items()
        },
        "memory": asdict(need)
        | {
            "fixed_bytes": need.fixed_bytes,
            "one_full_sequence_bytes": need.total_bytes(need.max_context, 1),
            "full_bytes": need.total_bytes(need.max_context, need.max_seats),
        },
        "weights": found.weights,
        "bits": found.bits,
        "differences": found.differences,
        "measured": _measured(found.measured),
        "verified": None if found.verified is None else _verified(found.verified),
        "plans": {name: _plan(view, name, plan) for name, plan in view.plans.items()},
        "plan": found.plan,
        "layers": found.layers,
    }


def _program(meaning: str, plan: Plan) -> dict[str, Any]:
    return {
        "meaning": meaning,
        "spec": plan.spec,
        "kernels": len(plan.kernels),
        "arena_bytes": plan.memory.arena_bytes,
    }


def _plan(view: ArtifactView, name: str, plan: Plan) -> dict[str, Any]:
    return {
        "kernels": len(plan.kernels),
        "kernel_counts": kernel_counts(plan),
        "arena_bytes": plan.memory.arena_bytes,
        "peak_live_bytes": max(live_bytes(plan), default=0),
        "driver": view.driver(name),
        "gpu_kernels": view.gpu_kernels(name),
    }


def _verified(found: Verification) -> dict[str, Any]:
    return asdict(found) | {"passed": found.passed, "max_error": found.max_error}


def _measured(found: Measured | None) -> Any:
    import msgspec

    return None if found is None else msgspec.to_builtins(found)
