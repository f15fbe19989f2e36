"""Words that must not be written, as the tokens that would write them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence


def spellings(
    words: Iterable[str], encode: Callable[[str], list[int]]
) -> tuple[tuple[int, ...], ...]:
    """The spellings of each word: at the beginning of a text, and after a space.

    vLLM drops the second spelling if it has more or fewer tokens than the first. Keeping it also
    catches words whose first token includes the space.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = tuple(encode(word.lstrip()))
        spaced = tuple(encode(" " + word.lstrip()))
        found[bare] = None
        if spaced[-len(bare) :] != bare:  # else the first one catches it, too
            found[spaced] = None
    return tuple(ids for ids in found if ids)


class BadWords:
    """Finds the tokens that would complete a bad word after what was generated."""

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self.always: tuple[int, ...] = ()
        # By the token before the last one, so that most steps look at nothing.
        self._after: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
        for word in words:
            *begin, last = word
            if begin:
                self._after[begin[-1]].append((begin, last))
            else:
                self.always = (*self.always, last)

    def completions(self, token_ids: Sequence[int], num_prompt: int) -> list[int]:
        """Tokens that would complete a word of several tokens, all of them generated."""
        size = len(token_ids)
        if size == num_prompt or token_ids[-1] not in self._after:
            return []
        return [
            last
            for begin, last in self._after[token_ids[-1]]
            if size - len(begin) >= num_prompt and list(token_ids[size - len(begin) :]) == begin
        ]
