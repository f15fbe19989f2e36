"""Result of the front end, before any target sees it."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.artifact.layer_graphs import LayerGraphs
from ingot.artifact.manifest import LedgerEntry
from ingot.artifact.plan import Plan
from ingot.artifact.programs import Program
from ingot.compiler.program_graphs import graph_of


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """A program as the passes leave it: its plan, the ledger, and one layer of each kind.

    The plan consists of primitives, and is the same for every target. `result` is the node of the
    exported graph that the program ends with.
    """

    program: Program
    result: str
    plan: Plan
    ledger: tuple[LedgerEntry, ...]
    layers: LayerGraphs


@dataclass(frozen=True, slots=True)
class Front:
    """Result of the front end: the exported graph, and its programs.

    `storage` says which matrices are stored in integers, and how; `quantization` says it in the
    words of the manifest. `fine` names those that multiply rows of 16 bits. The first program is
    what the model is for. `choice` says what was chosen by measurement, and why.
    """

    reference: GraphModule
    storage: dict[str, Storage]
    quantization: str
    programs: tuple[LoweredProgram, ...]
    fine: frozenset[str] = frozenset()
    choice: str = ""

    def graph(self, lowered: LoweredProgram) -> GraphModule:
        """The part of the exported graph that a program computes, in a copy."""
        return graph_of(self.reference, lowered.program, lowered.result)

    @property
    def main(self) -> LoweredProgram:
        return self.programs[0]

    @property
    def plan(self) -> Plan:
        """The plan of the main program."""
        return self.main.plan

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """Ledger of the passes, program by program."""
        return tuple(entry for each in self.programs for entry in each.ledger)
