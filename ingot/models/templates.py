"""Templates of tensors' names: `{i}` stands for a number, any other word in braces for any text.

The same word stands for the same text everywhere.
"""

from __future__ import annotations

import re
from functools import cache

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
BEYOND = "beyond"  # the number of a layer after the last
_NUMBERS = ("i", BEYOND)


@cache
def expand(template: str) -> re.Pattern[str]:
    """A pattern for the names that a template stands for; see `Family`."""
    literal, *rest = _PLACEHOLDER.split(template)
    parts, seen = [re.escape(literal)], set()
    for word, literal in zip(rest[::2], rest[1::2], strict=True):
        text = r"\d+" if word in _NUMBERS else ".+"
        parts += [f"(?P={word})" if word in seen else f"(?P<{word}>{text})", re.escape(literal)]
        seen.add(word)
    return re.compile("".join(parts))


def fill(template: str, match: re.Match[str]) -> str:
    """A template with the texts that another one has matched; other words stay."""
    texts = match.groupdict()
    return _PLACEHOLDER.sub(lambda word: texts.get(word[1], word[0]), template)
