"""Which cases of a test belong to the core, `make test`, and which to `make test-all` alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def core(*first: Any, further: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize`: the first, and further ones that are marked thorough.

    A case that is a tuple has a value for each argument.
    """

    def marked(case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=pytest.mark.thorough)

    return [*first, *(marked(case) for case in further if case not in first)]
