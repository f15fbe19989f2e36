"""Checks of a request's fields. What is wrong is a RequestError with field, value and range."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from ingot.errors import RequestError

_MAX_TOKEN = 2**31 - 1
_SHOWN = 80


def refuse(name: str, value: object, wanted: str) -> NoReturn:
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    raise RequestError(f"{name} is {shown}", hint=f"{name} must be {wanted}.")


def refuse_unknown(kind: str, given: Iterable[str], known: list[str]) -> None:
    """Raises RequestError for a name that is no field of a class; it proposes the nearest."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise RequestError(
                f"{kind} has no field {name!r}" + (f"; {near[0]!r}?" if near else ""),
                hint=f"Supported: {', '.join(known)}.",
            )


def plain(value: Any) -> Any:
    """A NumPy scalar as the Python value that it stands for; anything else as it is."""
    # Where nobody has imported NumPy there is no such scalar. A server starts sooner without it.
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        refuse(name, value, "True or False")


def integer(name: str, value: object, low: int, high: int) -> None:
    # A bool is an int to Python; as a number it is a mistake.
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        refuse(name, value, f"an integer in [{low}, {high}]")


def number(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: bool = False,
) -> None:
    """A finite number in [low, high], or in (low, high] with `above`."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Integers that are too large for a float are infinite for all that follows.
    fits = fits and abs(value) <= 1.7e308 and low <= value <= high  # type: ignore[arg-type,operator]
    if not fits or (above and value == low):
        begin = "(" if above or low == -math.inf else "["
        end = ")" if high == math.inf else "]"
        refuse(name, value, f"a finite number in {begin}{low}, {high}{end}")


def values(name: str, given: object, kind: type, most: int) -> tuple[Any, ...]:
    """A list of values of one type, as a tuple."""
    is_list = isinstance(given, (list, tuple, set, frozenset))
    items = tuple(map(plain, given)) if is_list else (None,)  # type: ignore[call-overload]
    if len(items) > most or not all(type(item) is kind for item in items):
        refuse(name, given, f"at most {most} values of type {kind.__name__}")
    return items


def token_ids(name: str, given: object, most: int) -> tuple[int, ...]:
    """A list of token ids, as a tuple; None is an empty one."""
    items = values(name, () if given is None else given, int, most)
    for token in items:
        if not 0 <= token <= _MAX_TOKEN:
            refuse(name, token, f"token ids in [0, {_MAX_TOKEN}]")
    return items


def check_unicode(text: str) -> None:
    """Raises RequestError for what Python makes of bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not valid UTF-8: character {error.start} is a lone surrogate",
            hint="Convert the text to UTF-8.",
        ) from error
