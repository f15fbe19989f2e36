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
        self._tokenizer, self._pooler = tokenizer, pooler
        self.longest = min(longest, pooler.max_tokens)
        self._most = self.longest if truncate else None

    def encode(self, texts: Sequence[Text], prompt: str = "") -> list[EncodedText]:
        """The tokens of each text, of those that are no tokens behind a prompt.

        Raises RequestError, naming the place of the text.
        """
        spelled = {i: behind(prompt, text) for i, text in enumerate(texts) if is_spelled(text)}
        batch = self._tokenizer.encode_texts([*map(as_spelled, spelled.values())], self._most)
        before = prompt_tokens(self._tokenizer, self._pooler, prompt)
        made = {
            i: EncodedText(tokens, second, count_unpooled(tokens, before))
            for i, (tokens, second) in zip(spelled, batch, strict=True)
        }
        found = []
        for i, text in enumerate(texts):
            found.append(made[i] if i in made else EncodedText(tokens_of(text, i)))
            self._check(found[i], i)
        return found

    def _check(self, text: EncodedText, place: int) -> None:
        count = len(text.tokens)
        if count > self.longest:
            raise RequestError(
                f"text {place} has {count} tokens, and the model takes {self.longest}",
                hint="Shorten it, or ask for truncation, which leaves out its end.",
            )
        if count <= text.unpooled:
            behind = " behind its prompt" if text.unpooled else ""
            raise RequestError(
                f"text {place} has no token{behind}", hint="Give a text that is not empty."
            )


def behind(prompt: str, text: Any) -> Any:
    """A text behind a prompt; a pair of texts, or tokens, as they are."""
    return prompt + text if isinstance(text, str) else text


def prompt_tokens(tokenizer: Tokenizer, pooler: Pooler, prompt: str) -> list[int]:
    """The tokens of a prompt that have no part in rows of texts behind it: those of it alone, but
    for a special one at their end, as sentence-transformers counts them."""
    if pooler.include_prompt or not prompt:
        return []
    tokens = tokenizer.encode(prompt)
    return tokens[:-1] if tokens and tokenizer.is_special(tokens[-1]) else tokens


def count_unpooled(tokens: Sequence[int], prompt: Sequence[int]) -> int:
    """How many tokens of a text behind a prompt are that prompt's. A last one is not that has
    become another together with the text."""
    count = min(len(prompt), len(tokens))
    return count - bool(count and count == len(tokens) and tokens[-1] != prompt[count - 1])


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
