"""Records what kernels are given and what they leave, while a step runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ingot.compiler.interpret import Value
from ingot.ops.scaled import Scaled
from ingot.targets.work import Work


@dataclass(slots=True)
class Seen:
    """A kernel with what it was given, `before`, and what it left, `after`.

    `before` holds temporaries by the names of their roots, and the states that it reads or writes
    into; `after` holds its results and the states that it wrote into.
    """

    work: Work
    before: dict[str, Value] = field(default_factory=dict)
    after: dict[str, Value] = field(default_factory=dict)


class Watching:
    """Takes notes between kernels. `value` gives what lies in a buffer now, by copy.

    Kernels that go row by row share a loop over blocks of rows, and so run in turns. The last note
    of each counts: nothing that such a loop reads or makes is overwritten in it.
    """

    def __init__(self, work: Sequence[Work], value: Callable[[str], Value]) -> None:
        self.seen = [Seen(each) for each in work]
        self._value = value
        self._last: Seen | None = None

    def watch(self, kernel: int) -> bool:
        """To be called before each kernel by its number, and with the number of kernels at the
        end. Returns True: every kernel runs."""
        if self._last is not None:
            self._last.after = {name: self._value(name) for name in left(self._last.work)}
        self._last = self.seen[kernel] if kernel < len(self.seen) else None
        if self._last is not None:
            self._last.before = {name: self._value(name) for name in given(self._last.work)}
        return True


def given(work: Work) -> tuple[str, ...]:
    """The temporaries, by the names of their roots, and the states that a kernel looks into."""
    roots = dict.fromkeys(work.plan.root(name).name for name in work.reads)
    return tuple(name for name in roots if work.plan.buffer(name).kind in ("arena", "state"))


def left(work: Work) -> tuple[str, ...]:
    """The results of a kernel, and the states that it writes into."""
    return (*work.writes, *sorted(work.mutated))


def copied(value: Value) -> Value:
    """Copies the numbers of a value."""
    if isinstance(value, Scaled):
        return replace(value, values=value.values.clone(), scales=value.scales.clone())
    return value.clone()
