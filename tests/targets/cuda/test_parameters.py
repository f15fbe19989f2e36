"""Tuples that kernels take are filled by the names of what lies in them."""

from types import SimpleNamespace
from typing import Any, NamedTuple

from ingot.targets.cuda.parameters import bound, defaults, leaves

# No `annotations` from the future, as in kernels: they are read as values.


class constexpr:
    """Stands for Triton's."""


class Rows(NamedTuple):
    at: int
    STRIDE: constexpr


class Added(NamedTuple):
    residual: Rows
    CAP: constexpr = 0.0  # type: ignore[assignment]


def _kernel(x: Rows, added: Added, out: Any, DEPENDENT: constexpr = False) -> None:  # type: ignore[assignment]
    """Takes what a kernel may take."""


KERNEL = SimpleNamespace(fn=_kernel)


def test_all_that_a_kernel_takes_has_a_name_and_a_path() -> None:
    assert {leaf.name: leaf.path for leaf in leaves(KERNEL)} == {
        "x": (0, 0),
        "X_STRIDE": (0, 1),
        "residual": (1, 0, 0),
        "RESIDUAL_STRIDE": (1, 0, 1),
        "CAP": (1, 1),
        "out": (2,),
        "DEPENDENT": (3,),
    }


def test_constants_are_told_from_what_a_launch_passes() -> None:
    passed = [leaf.name for leaf in leaves(KERNEL) if not leaf.is_constant]
    assert passed == ["x", "residual", "out"]


def test_what_has_a_default_need_not_be_given() -> None:
    assert defaults(KERNEL) == {"CAP": 0.0, "DEPENDENT": False}


def test_tuples_are_made_of_what_is_given() -> None:
    given = {"x": 1, "X_STRIDE": 2, "residual": 3, "RESIDUAL_STRIDE": 4, "out": 5}
    assert bound(KERNEL, defaults(KERNEL) | given) == {
        "x": Rows(1, 2),
        "added": Added(Rows(3, 4), 0.0),
        "out": 5,
        "DEPENDENT": False,
    }
