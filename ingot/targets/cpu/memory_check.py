"""Checks a memory plan from the definition, independently of the planner."""

from __future__ import annotations

from itertools import combinations

from ingot.artifact.plan import Plan
from ingot.errors import InternalError


def check_memory(plan: Plan) -> None:
    """Raises InternalError unless every temporary is in bounds, aligned and never overwritten.

    Lifetimes come from the instructions, not from the slots: a temporary lives from the first to
    the last kernel with an instruction that touches it, directly or through a view.
    """
    arena = {b.name: b for b in plan.of_kind("arena")}
    lives = _lives(plan)
    for buffer in arena.values():
        end = buffer.offset + plan.arena_bytes_of(buffer)
        if buffer.offset % 64 or buffer.offset < 0 or end > plan.memory.arena_bytes:
            raise InternalError(f"temporary {buffer.name} at {buffer.offset} is outside the arena")
    for a, b in combinations(sorted(lives), 2):
        (a_first, a_last), (b_first, b_last) = lives[a], lives[b]
        alive_together = a_first <= b_last and b_first <= a_last
        a_end = arena[a].offset + plan.arena_bytes_of(arena[a])
        b_end = arena[b].offset + plan.arena_bytes_of(arena[b])
        if alive_together and arena[a].offset < b_end and arena[b].offset < a_end:
            raise InternalError(f"temporaries {a} and {b} overlap in the arena while both live")


def _lives(plan: Plan) -> dict[str, tuple[int, int]]:
    lives: dict[str, tuple[int, int]] = {}
    for index, kernel in enumerate(plan.kernels):
        for instruction in plan.members(kernel):
            for name in (*instruction.inputs.values(), *instruction.outputs.values()):
                buffer = plan.by_name[name]
                while buffer.kind == "view":
                    buffer = plan.by_name[buffer.base]
                if buffer.kind == "arena":
                    lives[buffer.name] = (lives.get(buffer.name, (index, index))[0], index)
    return lives
