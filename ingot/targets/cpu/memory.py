"""Plans the arena of a CPU, whose threads may still read what kernels before this one have read."""

from __future__ import annotations

from ingot.artifact.plan import Plan
from ingot.targets.cpu.work import lasting_reads, work_of
from ingot.targets.memory import placed
from ingot.targets.work import memory_of


def with_memory(plan: Plan) -> Plan:
    """The plan with every temporary placed in the arena."""
    work = work_of(plan)
    return placed(plan, [
        ([b.name for n in reads if (b := memory_of(plan, n))], kernel.writes)
        for reads, kernel in zip(lasting_reads(work), work, strict=True)
    ])  # fmt: skip
