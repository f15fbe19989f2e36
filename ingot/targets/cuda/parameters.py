"""Parameters of a kernel by name, and the fields of those that are tuples.

Specifications of kernels know nothing of tuples. A parameter x whose tuple has the fields `at` and
`STRIDE` takes x and X_STRIDE; any other field has the name of what it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter, get_annotations, signature
from typing import Any


@dataclass(frozen=True, slots=True)
class Leaf:
    """A parameter that is no tuple, or a field that is none.

    Attributes:
        path: the place of the parameter, and of the field in each tuple around it.
        default: `Parameter.empty` where there is none.
    """

    path: tuple[int, ...]
    name: str
    annotation: Any
    default: Any

    @property
    def is_constant(self) -> bool:
        return "constexpr" in str(self.annotation)


def leaves(function: Any) -> Iterator[Leaf]:
    """All that a Triton function takes, in order."""
    for place, each in enumerate(signature(function.fn).parameters.values()):
        yield from _leaves((place,), each.name, each.annotation, each.default)


def defaults(function: Any) -> dict[str, Any]:
    """Default values of leaves, by name."""
    return {e.name: e.default for e in leaves(function) if e.default is not Parameter.empty}


def bound(function: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Binds values that are given by the names of leaves to the function's parameters."""
    parameters = signature(function.fn).parameters.values()
    return {each.name: _made(each.name, each.annotation, given) for each in parameters}


def _leaves(path: tuple[int, ...], name: str, annotation: Any, default: Any) -> Iterator[Leaf]:
    fields = _fields(name, annotation)
    if not fields:
        yield Leaf(path, name, annotation, default)
    for place, (field, (own, kind)) in enumerate(fields.items()):
        given = annotation._field_defaults.get(field, Parameter.empty)
        yield from _leaves((*path, place), own, kind, given)


def _made(name: str, annotation: Any, given: Mapping[str, Any]) -> Any:
    fields = _fields(name, annotation)
    if not fields:
        return given[name]
    return annotation(*(_made(own, kind, given) for own, kind in fields.values()))


def _fields(name: str, annotation: Any) -> dict[str, tuple[str, Any]]:
    """Names and annotations of a tuple's fields; nothing for what is no tuple."""
    own = {"at": name, "STRIDE": f"{name.upper()}_STRIDE"}
    kinds = get_annotations(annotation) if hasattr(annotation, "_fields") else {}
    return {field: (own.get(field, field), kind) for field, kind in kinds.items()}
