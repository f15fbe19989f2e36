"""Upper bounds of what chat templates make, computed before it is made.

A size is in characters; an item of a list counts as some of them, since it takes memory and time.
What is larger than a prompt may be is not counted to its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

MAX_PROMPT_CHARS = 16 << 20
BEYOND = MAX_PROMPT_CHARS + 1
_PER_ITEM = 16
_PER_LETTER = 64  # of a text that Python's own code goes through
_FIELD = re.compile(r"[%{]")
_NUMBER = re.compile(r"\d+")
# Widths that are given beside a format, and fields within fields.
_WIDTH_GIVEN = re.compile(r"%[^%a-zA-Z]*\*|\{[^{}]*\{")
_TEXTS = (str, bytes)


def size_of(value: Any, counted: int = 0) -> int:
    """`counted`, and the size of a value as a text."""
    if isinstance(value, _TEXTS):
        return counted + len(value)
    if isinstance(value, Mapping):
        value = [part for item in value.items() for part in item]
    if not isinstance(value, (list, tuple)):
        return counted + 1
    for item in value:
        if counted > MAX_PROMPT_CHARS:
            break
        counted = size_of(item, counted + _PER_ITEM)
    return counted


def size_of_operation(operator: str, left: Any, right: Any) -> int:
    """0 where a result is no larger than its parts."""
    if operator == "%":
        return _formatted(left, right) if isinstance(left, _TEXTS) else 0
    if operator == "**":
        are_numbers = isinstance(left, int) and isinstance(right, int)
        return int(left.bit_length() * right) if are_numbers else 0
    sizes = [_length(side) for side in (left, right) if isinstance(side, (*_TEXTS, list, tuple))]
    if operator == "+":
        return sum(sizes)
    times: list[int] = [side for side in (left, right) if isinstance(side, int)]
    return sizes[0] * times[0] if sizes and times else 0


def _length(value: Any) -> int:
    return len(value) * (1 if isinstance(value, _TEXTS) else _PER_ITEM)


def _formatted(text: Any, *given: Any, **named: Any) -> int:
    """Each field may show the largest of the values, as wide as it says."""
    text = text if isinstance(text, str) else str(text)
    if _WIDTH_GIVEN.search(text):
        return BEYOND
    widths = sum(int(number[:9]) for number in _NUMBER.findall(text))
    values = [*given, *named.values()]
    largest = max((size_of(part) for value in values for part in _parts(value)), default=0)
    return len(text) + widths + len(_FIELD.findall(text)) * largest


def _parts(value: Any) -> list[Any]:
    """The values that a format takes one by one."""
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, tuple) else [value]


def _padded(text: Any, width: int = 80, *_: Any, **__: Any) -> int:
    return int(width)


def _tabbed(text: Any, tabsize: int = 8) -> int:
    return len(text) * max(tabsize, 1)


def _indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    each = width if isinstance(width, int) else len(width)
    return len(str(text)) + (str(text).count("\n") + 1) * each


def _replaced(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
    text = text if isinstance(text, _TEXTS) else str(text)
    count: int = text.count(old)
    return len(text) + count * len(new)


def _translated(text: Any, table: Any) -> int:
    return len(text) * max((size_of(each) for each in _parts(table)), default=1)


def _joined(text: Any, parts: Any, *_: Any, **__: Any) -> int:
    known = parts if isinstance(parts, (list, tuple)) else ()
    return size_of(parts) + len(known) * size_of(text)


def _batched(items: Any, count: int, *_: Any, **__: Any) -> int:
    return int(count)


def _json(value: Any, *_: Any, indent: Any = None, **__: Any) -> int:
    return size_of(value) + (1000 * indent if isinstance(indent, int) else 0)


def _shown(value: Any, *_: Any, **__: Any) -> int:
    return size_of(value)


def _read_slowly(text: Any, *_: Any, **__: Any) -> int:
    return _PER_LETTER * size_of(text)


SIZES_OF_METHODS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("ljust", "rjust", "center", "zfill"), _padded),
    **dict.fromkeys(("format", "format_map"), _formatted),
    "expandtabs": _tabbed,
    "join": _joined,
    "replace": _replaced,
    "translate": _translated,
}
SIZES_OF_FILTERS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("pprint", "urlize", "wordwrap"), _read_slowly),
    **dict.fromkeys(
        ("escape", "e", "forceescape", "string", "sum", "urlencode", "xmlattr"), _shown
    ),
    "batch": _batched,
    "center": _padded,
    "format": _formatted,
    "indent": _indented,
    "join": lambda parts, d="", *_, **__: _joined(d, parts),
    "replace": _replaced,
    "slice": _batched,
    "tojson": _json,
}
