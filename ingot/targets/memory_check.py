"""Checks a memory plan from the definition, independently of the planner."""

from __future__ import annotations

from ingot.artifact.plan import Plan
from ingot.errors import InternalError


def check_memory(plan: Plan) -> None:
    """Raises InternalError unless every temporary is in bounds, aligned and never overwritten.

    Lifetimes come from the instructions, not from the slots: a temporary lives from the first to
    the last kernel with an instruction that touches it, directly or through a view.
    """
    places = {b.name: (b.offset, b.offset + plan.arena_bytes_of(b)) for b in plan.of_kind("arena")}
    for name, (start, end) in places.items():
        if start % 64 or start < 0 or end > plan.memory.arena_bytes:
            raise InternalError(f"temporary {name} at {start} is outside the arena")
    lives = _lives(plan)
    alive: list[str] = []
    for name in sorted(lives, key=lambda each: lives[each]):
        alive = [other for other in alive if lives[other][1] >= lives[name][0]]
        for other in alive:
            if places[name][0] < places[other][1] and places[other][0] < places[name][1]:
                a, b = sorted((name, other))
                raise InternalError(f"temporaries {a} and {b} overlap in the arena while both live")
        alive.append(name)


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
