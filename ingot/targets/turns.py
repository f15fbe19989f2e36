"""Turns of queries and keys in the kernels that targets share."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.artifact.plan import Instruction
from ingot.targets.work import Work


@dataclass(frozen=True)
class Turn:
    """Turns of heads: their rotation, and the norm before that if there is one."""

    rope: Instruction
    norm: Instruction | None

    @property
    def source(self) -> str:
        return (self.norm or self.rope).inputs["x"]


def turns_of(work: Work) -> tuple[Turn, Turn]:
    """The turns of queries and of keys."""
    made = {name: i for i in work.members for name in i.outputs.values()}
    ropes = [i for i in work.members if i.op == "rope"]
    key = made[work.member("kv_write").inputs["k"]]
    queries = next(rope for rope in ropes if rope is not key)
    turns = (Turn(rope, _norm_of(made.get(rope.inputs["x"]))) for rope in (queries, key))
    first, second = turns
    return first, second


def _norm_of(maker: Instruction | None) -> Instruction | None:
    return maker if maker is not None and maker.op == "rms_norm" else None
