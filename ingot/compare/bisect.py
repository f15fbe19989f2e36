"""Finds the first weight, instruction or kernel of an artifact that does what it should not.

The walk goes by the kernels of a plan, in the order in which they run, and asks of each:

    weights   are its packed weights those that the model's parameters give?
    plan      is what its instructions compute, in float32, what the module computes that they come
              from?
    kernel    is what it left, as compiled, what its instructions make of what it was given?

Each question is asked with right answers to those before: kernels are judged on the weights and the
values that they were given. So one fault gives one finding, and the first is the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ingot.artifact.plan import Buffer, Instruction
from ingot.compare.differences import Difference, difference, parts
from ingot.compare.kernel_check import SAME, KernelError, WatchedKernels, as_numbers, dense
from ingot.compare.makers import Makers, results
from ingot.compare.plan_check import Strayed
from ingot.compare.stored import Integers, damage, sources_of, wanted
from ingot.compiler.interpret import Read, Value
from ingot.compiler.options import Progress, silent
from ingot.ops.scaled import Scaled
from ingot.targets.work import Work

SHOWN_SLOTS = 4
Where = Literal["weights", "plan", "kernel", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault: a weight, an instruction or a kernel that does not do what it should.

    Attributes:
        where: which question it is the answer to; "memory" is a value that was overwritten between
            the kernel that made it and the one that read it.
        number, kernel: the kernel of the plan.
        origin: the module of the model.
        op: the instruction, or the instructions of a group, joined by "+".
        made_by: the pass that made the instruction, and the rule that formed the group.
        difference: of what is there to what should be.
        note: what more is known, in a sentence.
        step: in which step a kernel failed.
    """

    where: Where
    number: int
    kernel: str
    origin: str
    op: str
    made_by: str
    difference: Difference
    note: str = ""
    step: str = ""


@dataclass(frozen=True, slots=True)
class TracedFinding:
    """A finding, and what it was found by, for a reproducer."""

    finding: Finding
    evidence: KernelError | Strayed | tuple[Value, Value]


@dataclass(slots=True)
class Walk:
    """The walk over the kernels of one artifact.

    Attributes:
        kernels: those of the artifact, which have run.
        read: gives the model's parameters; None where there is no model directory.
        integers: gives those that a quantized checkpoint stores.
        calibrated: whether integers were chosen by calibration.
        stray: the first instruction that does not compute what the model does.
        makers: what made instructions and groups.
        rewriting: what the plan of the target was rewritten by, as messages name it.
        progress: is told of every kernel.
    """

    kernels: WatchedKernels
    read: Read | None = None
    integers: Integers | None = None
    calibrated: bool = False
    stray: Strayed | None = None
    makers: Makers = field(default_factory=Makers)
    rewriting: str = ""
    progress: Progress = silent
    _checked: set[str] = field(default_factory=set)

    def findings(self) -> Iterator[TracedFinding]:
        """All findings, in the order of the kernels."""
        count = len(self.kernels.work)
        for number, work in enumerate(self.kernels.work):
            self.progress("bisect", f"kernel {number} of {count}, {work.origin}", number / count)
            yield from self._weights(number, work)
            yield from self._plan(number, work)
            yield from self._kernel(number, work)

    def _weights(self, number: int, work: Work) -> Iterator[TracedFinding]:
        plan = work.plan
        for name in work.reads:
            buffer = plan.buffer(name)
            if buffer.kind != "weight" or name in self._checked or self.read is None:
                continue
            self._checked.add(name)
            stored = self.kernels.stored.read(buffer)
            should = wanted(buffer, self.read, self.integers)
            if should is None:
                assert isinstance(stored, Scaled), "only integers are chosen"
                stored, should = damage(buffer, stored, self.read, calibrated=self.calibrated)
            for (suffix, mine), (_, right) in zip(parts(stored), parts(should), strict=True):
                found = difference(f"{name}{suffix}", mine, right, SAME, by_rows=False)
                if found.is_beyond:
                    user = next(i for i in work.members if name in i.inputs.values())
                    note = _place_in(buffer, stored, should, self.read)
                    made = self._finding("weights", number, work, user, found, note)
                    yield TracedFinding(made, (stored, should))
                    break

    def _plan(self, number: int, work: Work) -> Iterator[TracedFinding]:
        group, stray = work.group, self.stray
        if stray is None or not group.first <= stray.index < group.first + group.count:
            return
        instruction = work.plan.instructions[stray.index]
        note = f"the nearest value of the model is {stray.nearest}" + self._stale(instruction)
        made = self._finding("plan", number, work, instruction, stray.difference, note)
        yield TracedFinding(made, stray)

    def _kernel(self, number: int, work: Work) -> Iterator[TracedFinding]:
        for error in self.kernels.errors(number):
            where: Where = "memory" if error.overwritten else "kernel"
            name = error.difference.output.partition(".")[0]
            maker = [i for i in work.members if name in (*i.outputs.values(), *i.inputs.values())]
            note = "it was overwritten before this kernel read it" if error.overwritten else ""
            if name in error.wanted and work.plan.buffer(name).kind == "state":
                note = _slots(error, name, self.kernels.steps.parts[error.step]["slots"].tolist())
            instruction = maker[-1] if maker and work.group.count > 1 else work.members[-1]
            made = self._finding(where, number, work, instruction, error.difference, note, error)
            yield TracedFinding(made, error)
            return

    def _finding(
        self,
        where: Where,
        number: int,
        work: Work,
        instruction: Instruction,
        found: Difference,
        note: str = "",
        error: KernelError | None = None,
    ) -> Finding:
        whole = where in ("kernel", "memory")
        by = self.makers.of(instruction, self.rewriting)
        rule = self.makers.rule(work.members)
        return Finding(
            where=where,
            number=number,
            kernel=work.kernel,
            origin=work.origin if whole else instruction.origin,
            op="+".join(i.op for i in work.members) if whole else instruction.op,
            made_by=", ".join(filter(None, (rule if whole else "", by))),
            difference=found,
            note=note,
            step=error.step if error else "",
        )

    def _stale(self, instruction: Instruction) -> str:
        """Tells how an instruction differs from the one that the passes of this ingot make."""
        fresh = self.makers.fresh.get(results(instruction)[0])
        if fresh is None:
            return ""
        here = {"op": instruction.op, **instruction.attrs, **instruction.inputs}
        there = {"op": fresh.op, **fresh.attrs, **fresh.inputs}
        changes = [
            f"{key}={here.get(key)!r} is {there.get(key)!r} there"
            for key in {**here, **there}
            if here.get(key) != there.get(key)
        ]
        if not changes:
            return ""
        return f"; the passes of this ingot make another instruction: {', '.join(changes)}"


def _place_in(buffer: Buffer, mine: Value, right: Value, read: Read) -> str:
    """Names the wrong rows and columns of a weight, and the parameter of the model."""
    one, other = as_numbers(mine), as_numbers(right)
    wrong = ~((one == other) | (one.isnan() & other.isnan()))
    rows, columns = (wrong.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
    if not rows:  # scales of zeros
        return ""
    start, name = 0, buffer.name
    for name in sources_of(buffer):
        size = len(read(name))
        if rows[0] < start + size:
            break
        start += size
    inside = [row - start for row in rows if row < start + len(read(name))]
    beyond = f", and {len(rows) - len(inside)} rows after it" if len(inside) < len(rows) else ""
    return f"wrong are rows {_span(inside)}, columns {_span(columns)} of {name}{beyond}"


def _slots(error: KernelError, name: str, written: Sequence[int]) -> str:
    """Names the wrong slots of a cache, and those among them that a step does not even write."""
    one, other = (dense(x) for x in (error.seen.after[name], error.wanted[name]))
    differ = ~((one == other) | (one.isnan() & other.isnan()))
    wrong = differ.any(3).any(1).flatten().nonzero().flatten().tolist()
    if not wrong:  # scales of zeros
        return ""
    beside = [str(slot) for slot in wrong if slot not in set(written)]
    listed = ", ".join(beside[:SHOWN_SLOTS]) + (", ..." if len(beside) > SHOWN_SLOTS else "")
    also = f"; the step does not write {listed}" if beside else ""
    return f"wrong are {len(wrong)} slots from {_span(wrong)}{also}"


def _span(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    return f"{first}" if first == last else f"{first} to {last}"
