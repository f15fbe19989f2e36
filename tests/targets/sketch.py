"""A plan in the making: buffers, and one primitive after the other."""

from __future__ import annotations

import inspect
import math
from zlib import crc32

import torch
from torch import Tensor

from ingot.artifact import programs
from ingot.artifact.formats import DType, Format
from ingot.artifact.plan import Attr, Buffer, Instruction, Kind, Limits, Plan
from ingot.artifact.programs import LOGITS
from ingot.artifact.spec import Array, Dim, Spec, State
from ingot.artifact.traits import TRAITS
from ingot.compiler.interpret import Value
from ingot.ops import OPS
from ingot.ops.dtypes import NAMES
from tests.support import samples

LIMITS = Limits(
    max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=160, max_logit_rows=160, page_size=16
)
INPUT_ROWS = {array.name: array.shape[0] for array in programs.STEP.inputs}
STEP = ("spans", "page_table")
RECORDS = ("spans", "records")


class Sketch:
    """Its methods add a buffer or an instruction and return the name of the buffer.

    `prefix` goes before names that are added; `weights` are the values of those buffers.
    """

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.prefix = ""
        self.buffers: dict[str, Buffer] = {}
        self.weights: dict[str, Value] = {}
        self.fine: set[str] = set()  # weights whose products read finer rows
        self.states: list[State] = []
        self.outputs: list[Array] = []
        self.instructions: list[Instruction] = []

    def add(
        self, name: str, form: Format | DType, shape: tuple[Dim, ...], kind: Kind, base: str = "",
        offset: int = 0, row_stride: int = 0,
    ) -> str:  # fmt: skip
        form = form if isinstance(form, Format) else Format(form)
        buffer = Buffer(
            name=self.prefix + name, format=form, shape=shape, kind=kind, base=base, offset=offset,
            row_stride=row_stride,
        )  # fmt: skip
        self.buffers[buffer.name] = buffer
        return buffer.name

    def rows(
        self, name: str, *shape: int, form: Format | DType = "float32", rows: Dim = "N"
    ) -> str:
        """A temporary [rows, ...]."""
        return self.add(name, form, (rows, *shape), "arena")

    def view(self, name: str, base: str, first: int, *shape: int) -> str:
        """Columns of a temporary, from one on."""
        whole = self.buffers[base]
        shape_of_rows = (whole.shape[0], *shape)
        return self.add(name, whole.format, shape_of_rows, "view", base, first, whole.columns)

    def weight(self, name: str, value: Value, form: Format | None = None) -> str:
        if isinstance(value, Tensor):
            form = Format(NAMES[value.dtype])
        assert form is not None
        added = self.add(name, form, tuple(value.shape), "weight")
        self.weights[added] = value
        return added

    def drawn(self, name: str) -> torch.Generator:
        """Random numbers for a buffer of that name."""
        return torch.Generator().manual_seed(crc32(f"{self.prefix}{name}".encode()))

    def vector(self, name: str, size: int) -> str:
        """A weight with values around one, never the same twice."""
        return self.weight(name, samples.scale_vector(self.drawn(name), size))

    def caches(
        self, heads: int, size: int, form: Format | DType = "float32", page_size: int = 16
    ) -> tuple[str, str]:
        """States of keys and values.

        A buffer of their name takes the place of the one that follows from the spec, so that pages
        can have several sizes.
        """
        names = [
            self.add(name, form, (0, heads, page_size, size), "state")
            for name in ("k_cache", "v_cache")
        ]
        for name in names:
            self.states.append(
                State(name=name, format=self.buffers[name].format, record=(heads, size))
            )
        return names[0], names[1]

    def latent_cache(self, size: int, form: Format | DType, page_size: int = 16) -> str:
        """A state of rows that are keys and, in their first columns, values."""
        name = self.add("latent_cache", form, (0, 1, page_size, size), "state")
        self.states.append(State(name=name, format=self.buffers[name].format, record=(1, size)))
        return name

    def record(self, heads: int, size: int, name: str = "record") -> str:
        """A state of one record a sequence."""
        form = Format("float32")
        state = State(name=self.prefix + name, kind="slotted", format=form, record=(heads, size))
        self.states.append(state)
        return state.name

    def logits(self, columns: int) -> str:
        """The program's result."""
        self.outputs.append(Array(name=LOGITS, dtype="float32", shape=("R", columns)))
        return LOGITS

    def call(
        self, op: str, *inputs: str | None, out: str = "out", form: Format | DType = "float32",
        shape: tuple[int, ...] | None = None, into: str = "", **attrs: Attr,
    ) -> str:  # fmt: skip
        """Adds a primitive; inputs are in the order of its traits, None for one that is absent.

        The result is a new temporary `out`, or `into` a buffer that there is.
        """
        given = {a: name for a, name in zip(TRAITS[op].roles, inputs, strict=False) if name}
        if TRAITS[op].outputs and not into:
            own = given[TRAITS[op].multiplied]
            rows = self.buffers[own].shape[0] if own in self.buffers else INPUT_ROWS[own]
            into = self.add(out, form, (rows, *(shape or self._shape(op, given))), "arena")
        self.instructions.append(
            Instruction(
                op=op,
                inputs=given,
                outputs={"out": into} if into else {},
                attrs=_defaults(op) | attrs,
                origin=f"cases.{self.prefix.rstrip('.')}",
            )
        )
        return into

    def _shape(self, op: str, given: dict[str, str]) -> tuple[int, ...]:
        """Of a row of the result."""
        shapes = {a: self.buffers[name].shape for a, name in given.items() if name in self.buffers}
        inner = {
            "linear": lambda: shapes["weight"][:1],
            "head_linear": lambda: shapes["weight"][:1],
            "embedding": lambda: shapes["weight"][1:],
            "rope_table": lambda: (2 * int(shapes["inv_freq"][0]),),
            "recurrence": lambda: shapes["v"][1:],
            "bonus": lambda: shapes["v"][1:],
        }.get(op, lambda: next(iter(shapes.values()))[1:])
        return tuple(map(int, inner()))

    def plan(self) -> Plan:
        return Plan(
            limits=self.limits,
            spec=Spec(
                inputs=programs.STEP.inputs_for("paged", *(each.kind for each in self.states)),
                states=tuple(self.states),
                outputs=tuple(self.outputs),
            ),
            buffers=tuple(self.buffers.values()),
            instructions=tuple(self.instructions),
        )


def _defaults(op: str) -> dict[str, Attr]:
    parameters = inspect.signature(OPS[op].reference).parameters.values()
    return {
        p.name: p.default
        for p in parameters
        if p.default is not p.empty and p.name not in TRAITS[op].roles and p.name != "out_dtype"
    }


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Weights whose product with values of unit size are of unit size."""
    rng = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=rng) / math.sqrt(shape[-1])).to(dtype)
