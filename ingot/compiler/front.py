"""What the front end makes of a model, before any target sees it."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.artifact.layer_graphs import LayerGraphs
from ingot.artifact.manifest import LedgerEntry
from ingot.artifact.plan import Plan


@dataclass(frozen=True, slots=True)
class Front:
    """What the front end makes of a model: the exported graph, the plan, and the ledger.

    The plan consists of primitives, and is the same for every target. `storage` says which matrices
    are stored in integers, and how; `quantization` says it in the words of the manifest. `layers`
    is what the passes made of one layer of each kind.
    """

    reference: GraphModule
    storage: dict[str, Storage]
    quantization: str
    plan: Plan
    ledger: tuple[LedgerEntry, ...]
    layers: LayerGraphs
