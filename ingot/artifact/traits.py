"""The primitives and their traits: everything that can be known about an op without running it.

This file declares each primitive once, without torch. The file of its name in `ingot/ops/` says
what it computes. Code elsewhere asks for traits and compares no names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ingot.artifact.cost import (
    Cost,
    StepShape,
    attention,
    lookup,
    product,
    read_weights,
    recurrence,
    segment_attention,
    selective_scan,
    stacked_product,
)
from ingot.artifact.plan import Buffer, Instruction

Costs = Callable[[Instruction, Mapping[str, Buffer], StepShape], Cost]


class Role(Enum):
    """The way in which a row of an op's results depends on one of its arguments."""

    OWN = "the same row of it"
    PRECEDING = "the same row of it, and those before it in its sequence"
    CHOSEN = "rows of it that another argument names"
    SEQUENCE = "what its sequence has stored so far: a state, or a table that says where it lies"
    SEGMENT = "all rows of its segment, or a table that says which these are"
    WRITTEN = "none: the op writes into it"
    MATRIX = "all of it: a weight that rows are multiplied with"
    STACK = "some of it: a weight of many matrices, with a few of which a row is multiplied"
    TABLE = "rows of it that another argument names; it is a weight"
    VECTOR = "all of it: a weight with an element or a row a column, or a head, or a matrix"


WEIGHTS = (Role.MATRIX, Role.STACK, Role.TABLE, Role.VECTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of a primitive that are known without running it.

    Attributes:
        roles: of every argument that is a tensor, by name.
        outputs: names of the results, in order; none for an op that only writes into arguments.
        cost: bytes and operations of an instruction in a step of some shape.
        narrows: results of the product may have the dtype of what it multiplies; those of others
            are float32, as sums and residuals are.
        added: arguments that are added to sums, and are float32 as those are.
    """

    roles: Mapping[str, Role]
    outputs: tuple[str, ...] = ("out",)
    cost: Costs = field(default=read_weights)
    narrows: bool = False
    added: tuple[str, ...] = ()

    def arguments(self, *roles: Role) -> tuple[str, ...]:
        """The arguments that have one of these roles."""
        return tuple(name for name, role in self.roles.items() if role in roles)

    @property
    def matrix(self) -> str:
        """The argument that rows are multiplied with; empty for an op that is not a product."""
        return next(iter(self.arguments(Role.MATRIX, Role.STACK)), "")

    @property
    def multiplied(self) -> str:
        """The argument that has a row for each row of results: of a product, what it multiplies."""
        return self.arguments(Role.OWN, Role.PRECEDING)[0]

    @property
    def stacked(self) -> bool:
        """Tells whether it is a product with a few of many matrices, which its rows choose."""
        return Role.STACK in self.roles.values()

    @property
    def integers(self) -> tuple[str, ...]:
        """The weights that can be stored in integers."""
        return self.arguments(Role.MATRIX, Role.STACK, Role.TABLE)

    @property
    def mutates(self) -> tuple[str, ...]:
        """The arguments that it writes into."""
        return self.arguments(Role.WRITTEN)

    @property
    def meets_tokens(self) -> bool:
        """Tells whether a row of results depends on other tokens of its sequence or segment."""
        return bool(self.arguments(Role.SEQUENCE, Role.SEGMENT))

    @property
    def goes_on(self) -> bool:
        """Tells whether rows go on from those before them, in a record of their sequence."""
        return bool(self.arguments(Role.PRECEDING))

    @property
    def attends(self) -> bool:
        """Tells whether it is attention: rows meet the keys of others."""
        return self.meets_tokens and not self.goes_on

    @property
    def by_rows(self) -> bool:
        """Tells whether a row of results needs only the same row of its operands, and weights."""
        return {*self.roles.values()} <= {Role.OWN, *WEIGHTS}


_STEP = dict.fromkeys(("spans", "page_table"), Role.SEQUENCE)
_NORM = {"x": Role.OWN, "weight": Role.VECTOR}
_RECORDS = dict.fromkeys(("spans", "records"), Role.SEQUENCE)
_PICKED = {"x": Role.OWN, "shares": Role.OWN}
_STACK = _PICKED | {"weight": Role.STACK, "bias": Role.VECTOR}
_TABLES = {"bias": Role.VECTOR, "buckets": Role.VECTOR}

TRAITS: Mapping[str, Traits] = {
    # rows of tables
    "embedding": Traits(roles={"tokens": Role.OWN, "weight": Role.TABLE}, cost=lookup),
    "rope_table": Traits(roles={"positions": Role.OWN, "inv_freq": Role.VECTOR}),
    "select_rows": Traits(roles={"x": Role.CHOSEN, "rows": Role.OWN}),
    "pool": Traits(roles={"x": Role.CHOSEN, "spans": Role.OWN}),
    # products
    "linear": Traits(
        roles={"x": Role.OWN, "weight": Role.MATRIX, "bias": Role.VECTOR}, cost=product
    ),
    # mixtures of experts: `experts` is one expression in a graph, and two products in a plan
    "route": Traits(roles={"logits": Role.OWN, "bias": Role.VECTOR}),
    "experts": Traits(
        roles=_PICKED
        | dict.fromkeys(("gate_up", "down"), Role.STACK)
        | dict.fromkeys(("gate_up_bias", "down_bias"), Role.VECTOR),
        cost=stacked_product,
    ),
    "expert_gate": Traits(roles=_STACK, cost=stacked_product, narrows=True),
    "expert_sum": Traits(roles=_STACK, cost=stacked_product),
    "head_linear": Traits(roles={"x": Role.OWN, "weight": Role.MATRIX}, cost=product, narrows=True),
    # row by row
    "rms_norm": Traits(roles=_NORM),
    "layer_norm": Traits(roles=_NORM | {"bias": Role.VECTOR}),
    "rope": Traits(roles={"x": Role.OWN, "table": Role.OWN}),
    "gate": Traits(roles={"gate": Role.OWN, "up": Role.OWN}),
    "activation": Traits(roles={"x": Role.OWN}),
    "add": Traits(roles={"x": Role.OWN, "y": Role.OWN}),
    "concat": Traits(roles={"x": Role.OWN, "y": Role.OWN}),
    "reorder": Traits(roles={"x": Role.OWN, "order": Role.VECTOR}),
    "mul": Traits(roles={"x": Role.OWN}),
    "scale": Traits(roles={"x": Role.OWN, "weight": Role.VECTOR}),
    "head_scale": Traits(roles={"x": Role.OWN, "share": Role.OWN}),
    "lerp": Traits(roles=dict.fromkeys(("x", "y", "share"), Role.OWN) | {"weight": Role.VECTOR}),
    "bonus": Traits(roles=dict.fromkeys("qkv", Role.OWN) | {"weight": Role.VECTOR}),
    "clamp": Traits(roles={"x": Role.OWN}),
    "soft_cap": Traits(roles={"x": Role.OWN}),
    "cast": Traits(roles={"x": Role.OWN}),
    # attention: one sequence over itself, many over their pages, and segments over themselves; if
    # there are no values of their own (`v`, `v_cache`), they are the first columns of the keys
    "attention": Traits(
        roles={"q": Role.OWN, "k": Role.SEQUENCE, "v": Role.SEQUENCE, "sinks": Role.VECTOR}
        | {"q_bias": Role.OWN, "k_bias": Role.SEQUENCE}
        | _TABLES
    ),
    "kv_write": Traits(
        roles={"k": Role.OWN, "v": Role.OWN, "slots": Role.OWN}
        | {"k_cache": Role.WRITTEN, "v_cache": Role.WRITTEN},
        outputs=(),
    ),
    "paged_attention": Traits(
        roles={"q": Role.OWN, "k_cache": Role.SEQUENCE, "v_cache": Role.SEQUENCE}
        | _STEP
        | {"sinks": Role.VECTOR},
        cost=attention,
    ),
    "segment_attention": Traits(
        roles={"q": Role.OWN}
        | dict.fromkeys(("k", "v", "spans"), Role.SEGMENT)
        | {"q_bias": Role.OWN, "k_bias": Role.SEGMENT}
        | _TABLES,
        cost=segment_attention,
        added=("q_bias", "k_bias"),
    ),
    # mixers that keep one record of a sequence
    "token_shift": Traits(roles={"x": Role.PRECEDING, "tail": Role.WRITTEN} | _RECORDS),
    "short_conv": Traits(
        roles={"x": Role.PRECEDING, "tail": Role.WRITTEN}
        | dict.fromkeys(("weight", "bias"), Role.VECTOR)
        | _RECORDS
    ),
    "recurrence": Traits(
        roles=dict.fromkeys(("q", "k", "v", "decay", "beta", "a", "b"), Role.PRECEDING)
        | {"skip": Role.VECTOR, "state": Role.WRITTEN}
        | _RECORDS,
        cost=recurrence,
    ),
    "selective_scan": Traits(
        roles=dict.fromkeys(("x", "dt", "b", "c"), Role.PRECEDING)
        | dict.fromkeys(("rate", "skip"), Role.VECTOR)
        | {"state": Role.WRITTEN}
        | _RECORDS,
        cost=selective_scan,
    ),
}


def origin_of(members: Sequence[Instruction]) -> str:
    """The module that a kernel comes from: that of its product, or else of its last instruction."""
    products = (i for i in members if traits_of(i).matrix)
    return next(products, members[-1]).origin


def written_by(instruction: Instruction) -> tuple[str, ...]:
    """The buffers that an instruction writes into, beside its results."""
    arguments = traits_of(instruction).mutates
    return tuple(instruction.inputs[name] for name in arguments if name in instruction.inputs)


def traits_of(instruction: Instruction) -> Traits:
    """The traits of an instruction's primitive."""
    return TRAITS[instruction.op]
