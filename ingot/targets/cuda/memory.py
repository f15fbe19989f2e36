"""Places the temporaries of a GPU, whose kernels run one after the other."""

from __future__ import annotations

from ingot.artifact.plan import Plan
from ingot.targets.memory import placed
from ingot.targets.memory_check import check_memory
from ingot.targets.work import Work, memory_of


def with_memory(plan: Plan) -> Plan:
    """The plan with every temporary placed in the arena."""
    work = [Work(plan, group) for group in plan.kernels]
    found = placed(plan, [(_roots(plan, each.reads), _roots(plan, each.writes)) for each in work])
    check_memory(found)
    return found


def _roots(plan: Plan, names: tuple[str, ...]) -> list[str]:
    return [buffer.name for name in names if (buffer := memory_of(plan, name))]
