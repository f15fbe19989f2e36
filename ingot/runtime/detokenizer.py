"""Text from tokens as they come: never half a character, and in the end the full decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, takewhile

from ingot.runtime.spelled_bytes import is_byte, num_open_bytes, spelled_bytes

_MAX_OPEN_TOKENS = 3  # that hold the beginning of a character
_INCOMPLETE = "\ufffd"  # what a decoder writes for a character whose bytes are not all there


class Detokenizer:
    """Decodes a growing list of tokens piece by piece.

    Text that later tokens could still change is held back: the bytes of an unfinished character,
    and a run of byte tokens (`<0xE4>`), which decoders judge as a whole. Joined, the pieces are
    `decode` of all tokens. After a prompt they are what the tokens add to its text.

    Args:
        decode: text of a list of tokens.
        token: the spelling of a token in the vocabulary; None for one that leaves no text and so
            does not end a run of byte tokens either.
        prompt: the last tokens before the first one. They leave no text, but many decoders drop
            a space at the beginning of a text, and a character may have begun in them.
        breaks: whether the text begins anew between two neighbouring tokens; None: never.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        token: Callable[[int], str | None],
        *,
        prompt: Sequence[int] = (),
        breaks: Callable[[int, int], bool] | None = None,
    ) -> None:
        self._decode = decode
        self._token = token
        self._breaks = breaks
        self._begin(prompt)

    def _begin(self, prompt: Sequence[int]) -> None:
        self._token_ids = list(prompt)
        self._num_prompt = len(prompt)
        self._text = ""
        # Only a window of tokens is decoded each time. It begins with tokens whose text is out,
        # because a decoder treats the first token of a text differently.
        self._window = 0
        self._settled = len(prompt)  # end of the tokens in the window whose text is out
        self._num_out = 0  # characters of the window's text that are out

    def push(self, token_id: int) -> str:
        """Adds a token and returns the text that is now certain, possibly none."""
        if self._breaks and self._token_ids and self._breaks(self._token_ids[-1], token_id):
            rest = self.finish()
            self._begin(())
            return rest + self.push(token_id)
        self._token_ids.append(token_id)
        spelling = self._token(token_id)
        if spelling is None or is_byte(spelling):
            return ""
        text = self._decode(self._token_ids[self._window :])
        if not self._text:  # a character of the prompt may have been completed just now
            start = self._end_of_prompt(text)
            if start is None:
                return self._without_prompt()
            self._num_out = start
        whole = not text.endswith(_INCOMPLETE)
        new = text[self._num_out : None if whole else -1]
        if whole and new:
            self._window, self._settled = self._settled, len(self._token_ids)
            self._num_out = len(self._decode(self._token_ids[self._window :]))
        else:
            self._num_out += len(new)
        self._text += new
        return new

    def finish(self, *, cut: bool = False) -> str:
        """Flushes the held-back text; with `cut`, without an incomplete character."""
        num_open = self._drop_open() if cut else 0
        text = self._decode(self._token_ids)
        start = self._end_of_prompt(text)
        if start is None:
            return self._without_prompt() + self.finish(cut=cut)
        new = text[start + len(self._text) :]
        if num_open:
            new = new.removesuffix(_INCOMPLETE)
        self._text += new
        return new

    def _drop_open(self) -> int:
        """Drops the byte tokens at the end that begin a character, since decoders judge a run of
        them as a whole. Returns how many bytes of one other tokens end with."""
        spellings = (each for each in map(self._token, reversed(self._token_ids)) if each)
        last = next(spellings, "")
        if not is_byte(last):
            return _num_open(last, *islice(spellings, _MAX_OPEN_TOKENS - 1))
        num_open = _num_open(last, *takewhile(is_byte, spellings))
        while num_open and len(self._token_ids) > self._num_prompt:
            num_open -= is_byte(self._token(self._token_ids.pop()))
        return 0

    def _end_of_prompt(self, text: str) -> int | None:
        """Index at which the text continues after the prompt's; None if the prompt decodes
        differently."""
        prompt = self._token_ids[: self._num_prompt]
        known = self._decode(prompt) if prompt else ""
        is_open = known.endswith(_INCOMPLETE)
        for _ in range(_MAX_OPEN_TOKENS):
            if not prompt or not is_open or text.startswith(known):
                break
            prompt.pop()
            known = self._decode(prompt)
        return len(known) if text.startswith(known) else None

    def _without_prompt(self) -> str:
        generated = self._token_ids[self._num_prompt :]
        self._begin(())
        return "".join(map(self.push, generated))


def _num_open(*spellings: str) -> int:
    """The bytes of a character that tokens begin and do not end, the last token first."""
    return num_open_bytes(b"".join(map(spelled_bytes, reversed(spellings))))
