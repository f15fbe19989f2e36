"""Follows a sequence through a grammar: which tokens may come next, and when it is complete."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ingot.errors import GrammarError, IngotError, InternalError
from ingot.runtime.arrays import Int32

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_MASKS = 64  # whose tokens are remembered: inside a string, all masks are the same


class Allowed(NamedTuple):
    """The tokens of a mask, by the shorter list: `only` these if it is given; none of `never`."""

    only: Int32 | None
    never: Int32

    def has(self, token: int) -> bool:
        """Returns whether a token is among them."""
        return token not in self.never if self.only is None else token in self.only


class Vocabulary:
    """The tokens of a model, as grammars see them, and the masks that were met last.

    For the engine's thread, but for `tokenizer`.
    """

    def __init__(self, tokenizer: LLTokenizer, size: int) -> None:
        self.tokenizer = tokenizer
        self.eos_token_ids = frozenset(tokenizer.eos_tokens)
        self._size = size
        self._masks: OrderedDict[bytes, Allowed] = OrderedDict()

    def allowed(self, mask: bytes) -> Allowed:
        """The tokens of a mask, which has a bit for each."""
        known = self._masks.get(mask)
        if known is not None:
            self._masks.move_to_end(mask)
            return known
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[: self._size]
        few = 2 * np.count_nonzero(bits) <= self._size
        tokens = np.flatnonzero(bits if few else bits == 0).astype(np.int32)
        found = Allowed(tokens, tokens[:0]) if few else Allowed(None, tokens)
        self._masks[mask] = found
        if len(self._masks) > MAX_MASKS:
            self._masks.popitem(last=False)
        return found


class Grammar:
    """A compiled grammar. Each sequence has a `guide` of its own."""

    def __init__(self, vocabulary: Vocabulary, start: LLMatcher) -> None:
        self.vocabulary = vocabulary
        self._start = start

    def matcher(self) -> LLMatcher:
        """A matcher at the beginning."""
        return self._start.deep_copy()

    def __deepcopy__(self, memo: object) -> Grammar:
        return self  # nobody changes it


class Guide:
    """Position of a sequence in its grammar. For one thread only.

    `error`: why the grammar cannot go on.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.vocabulary = grammar.vocabulary
        self._grammar = grammar
        self._matcher: LLMatcher | None = None
        self._num_taken = 0
        self._allowed: Allowed | None = None
        self._complete = False
        self.error: IngotError | None = None

    def ends(self, token_ids: list[int], num_prompt: int) -> bool:
        """Returns whether these are the last tokens: nothing can follow, or there is an `error`."""
        self._current(token_ids, num_prompt)
        return self._complete or self.error is not None

    def allowed(self, token_ids: list[int], num_prompt: int) -> Allowed:
        """Tokens that the grammar allows next; none where it cannot go on."""
        matcher = self._current(token_ids, num_prompt)
        if self._allowed is None:
            mask = matcher.compute_bitmask()
            if matcher.is_error():
                self._fail(matcher)
            self._allowed = NOTHING if self.error else self.vocabulary.allowed(mask)
        return self._allowed

    def _current(self, token_ids: list[int], num_prompt: int) -> LLMatcher:
        generated = len(token_ids) - num_prompt
        if self._matcher is None or generated < self._num_taken:  # some were taken back
            self._matcher = self._grammar.matcher()
            self._num_taken, self._allowed, self._complete = 0, None, False
        if generated > self._num_taken:
            new = token_ids[num_prompt + self._num_taken :]
            self._num_taken, self._allowed = generated, None
            if not self._matcher.consume_tokens(new):
                self._fail(self._matcher)
            self._complete = self._matcher.is_stopped()
        return self._matcher

    def _fail(self, matcher: LLMatcher) -> None:
        """Notes why the matcher stopped: a token that no mask allowed, or a limit."""
        if "satisfy" in matcher.get_error():
            self.error = InternalError(f"token {self._num_taken} does not follow from the grammar")
        else:
            self.error = GrammarError(
                f"the grammar became too complex after {self._num_taken} tokens",
                hint="Make it less ambiguous, or its repetitions shorter.",
            )


NOTHING = Allowed(np.empty(0, np.int32), np.empty(0, np.int32))
