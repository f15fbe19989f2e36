"""Reads the pickle in a file of `torch.save` as records of tensors, and runs nothing of it.

A pickle is a program for a machine with a stack. This one knows the operations alone that make
dictionaries, tuples and numbers, and two names that it does not look up: those of a tensor, and of
its storage. Any other operation or name is an error.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 64 * 2**20  # of a pickle; those of today take some 100 kB
# Classes of storages: how safetensors calls the dtype of their numbers.
DTYPES = {
    "FloatStorage": "F32",
    "BFloat16Storage": "BF16",
    "HalfStorage": "F16",
    "DoubleStorage": "F64",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
TENSOR, PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
ORDERED = "collections OrderedDict"
NAMES = {TENSOR, PARAMETER, ORDERED, *(f"torch {name}" for name in DTYPES)}


class Refused(Exception):
    """A pickle that is none of tensors. The message says what it has, after "has" or "is"."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name that a pickle asks for. It stands for itself: nothing is imported."""

    text: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Numbers of a tensor: `count` of a dtype, in the member data/<key> of the file."""

    dtype: str
    key: str
    count: int


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor: where its first number lies in a storage, its shape, and its strides."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_MARK = object()


class _Machine:
    """The stack and the memory of a pickle. A value of a wrong kind raises what Python raises."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        return self.stack.pop()

    def above_mark(self) -> list[Any]:
        """Takes all that lies above the last mark, and the mark."""
        at = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        found, self.stack = self.stack[at + 1 :], self.stack[:at]
        return found

    def gather(self, count: int) -> None:
        """Makes a tuple of what lies on top."""
        at = len(self.stack) - count
        if at < 0:
            raise IndexError
        self.stack[at:] = [tuple(self.stack[at:])]

    def name(self, text: str) -> None:
        if text not in NAMES:
            raise Refused(f"asks for {text.replace(' ', '.')!r:.80}")
        self.push(Name(text))

    def call(self) -> None:
        given, called = self.pop(), self.pop()
        made: Mapping[str, Callable[..., Any]] = {
            ORDERED: dict,
            TENSOR: _tensor,
            PARAMETER: lambda tensor, *_: tensor,
        }
        if not isinstance(called, Name) or called.text not in made:
            raise Refused("calls what is no tensor")
        self.push(made[called.text](*given))

    def store(self) -> None:
        """Puts the storage that an identity tells in its place."""
        kind, name, key, _, count = self.pop()
        found = DTYPES.get(name.text.removeprefix("torch "))
        if kind != "storage" or found is None or not _is_size(count):
            raise Refused("has a storage of an unknown kind")
        self.push(Storage(found, str(key), count))

    def fill(self, pairs: list[Any]) -> None:
        """Puts keys and values into the dictionary on top."""
        target = self.stack[-1]
        if type(target) is not dict or len(pairs) % 2:
            raise Refused("fills what is no dictionary")
        target.update(zip(pairs[::2], pairs[1::2], strict=True))


def _tensor(
    storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> TensorRecord:
    sizes = (offset, *shape, *strides)
    if type(storage) is not Storage or not all(map(_is_size, sizes)) or len(shape) != len(strides):
        raise Refused("has a tensor of no valid shape")
    return TensorRecord(storage, offset, shape, strides)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


# What each operation does; `given` is what stands beside it in the pickle.
Operation = Callable[[_Machine, Any], object]
_PUT: Operation = lambda m, given: m.memory.__setitem__(given, m.stack[-1])  # noqa: E731
_GET: Operation = lambda m, given: m.push(m.memory[given])  # noqa: E731
_PUSH: Operation = lambda m, given: m.push(given)  # noqa: E731
OPERATIONS: Mapping[str, Operation] = {
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _PUT),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _GET),
    **dict.fromkeys(("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"), _PUSH),
    "PROTO": lambda m, given: None,
    "MARK": lambda m, given: m.push(_MARK),
    "NONE": lambda m, given: m.push(None),
    "NEWTRUE": lambda m, given: m.push(True),
    "NEWFALSE": lambda m, given: m.push(False),
    "EMPTY_DICT": lambda m, given: m.push({}),
    "EMPTY_TUPLE": lambda m, given: m.push(()),
    "TUPLE": lambda m, given: m.push(tuple(m.above_mark())),
    "TUPLE1": lambda m, given: m.gather(1),
    "TUPLE2": lambda m, given: m.gather(2),
    "TUPLE3": lambda m, given: m.gather(3),
    "SETITEM": lambda m, given: m.fill([m.pop(), m.pop()][::-1]),
    "SETITEMS": lambda m, given: m.fill(m.above_mark()),
    "GLOBAL": _Machine.name,
    "REDUCE": lambda m, given: m.call(),
    "BINPERSID": lambda m, given: m.store(),
    "BUILD": lambda m, given: m.pop(),  # attributes of a dictionary, such as versions of modules
    "STOP": lambda m, given: None,
}


def read_records(data: bytes) -> dict[str, TensorRecord]:
    """The tensors of a pickle by their names.

    Raises Refused for an operation, a name or a value that is none of those above, and for
    anything but one dictionary of tensors.
    """
    machine = _Machine()
    try:
        for opcode, given, _ in pickletools.genops(data):
            if opcode.name not in OPERATIONS:
                raise Refused(f"uses the operation {opcode.name}")
            OPERATIONS[opcode.name](machine, given)
        (found,) = machine.stack
    except Refused:
        raise
    except Exception as error:  # whatever a damaged pickle does to the stack
        raise Refused("is no valid pickle") from error
    if type(found) is not dict:
        raise Refused("holds no dictionary of tensors")
    for name, value in found.items():
        if type(name) is not str or type(value) is not TensorRecord:
            raise Refused(f"holds {name!r:.60}, which is no tensor")
    return found
