"""From texts to the tokens that a model of whole texts reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.artifact.pooler import Pooler
from ingot.errors import RequestError
from ingot.runtime.encoder import EncodedText
from ingot.runtime.tokenizer import Tokenizer

Pair = tuple[str, str]
# A text, two of them side by side, or tokens.
Text = str | Pair | Sequence[int]


class TextTokens:
    """Turns texts into tokens as a model was trained on them.

    Args:
        longest: the most tokens of a text, special ones included.
        truncate: cut longer texts, of pairs the longer text first, and keep special tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, pooler: Pooler, *, longest: int, truncate: bool
    ) -> None:
        self._tokenizer = tokenizer
        self.longest = min(longest, pooler.max_tokens)
        self._most = self.longest if truncate else None

    def encode(self, texts: Sequence[Text]) -> list[EncodedText]:
        """The tokens of each text. Raises RequestError, naming the place of the text."""
        spelled = {i: text for i, text in enumerate(texts) if is_spelled(text)}
        batch = self._tokenizer.encode_texts([*map(as_spelled, spelled.values())], self._most)
        made = dict(zip(spelled, batch, strict=True))
        found = []
        for i, text in enumerate(texts):
            found.append(EncodedText(*made[i]) if i in made else EncodedText(tokens_of(text, i)))
            self._check(found[i], i)
        return found

    def _check(self, text: EncodedText, place: int) -> None:
        count = len(text.tokens)
        if count > self.longest:
            raise RequestError(
                f"text {place} has {count} tokens, and the model takes {self.longest}",
                hint="Shorten it, or ask for truncation, which leaves out its end.",
            )
        if not count:
            raise RequestError(f"text {place} has no token", hint="Give a text that is not empty.")


def is_spelled(text: Text) -> bool:
    """Returns whether it is a text or a pair, and not tokens."""
    return isinstance(text, str) or (
        isinstance(text, (tuple, list))
        and len(text) == 2
        and all(isinstance(part, str) for part in text)
    )


def as_spelled(text: Any) -> str | Pair:
    """A text, or a pair of them."""
    return text if isinstance(text, str) else (text[0], text[1])


def tokens_of(text: Any, place: int) -> list[int]:
    """Tokens that were given as such. Raises RequestError for anything else."""
    is_list = isinstance(text, (list, tuple)) and all(type(token) is int for token in text)
    if not is_list:
        raise RequestError(
            f"text {place} is {text!r:.80}", hint="Give a text, a pair of texts, or tokens."
        )
    return [*text]
