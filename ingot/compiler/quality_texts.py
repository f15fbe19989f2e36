"""Texts to measure quality on: the compile's own, a conversation, or a user's file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from ingot.compiler.quality_text import TEXTS
from ingot.compiler.text_file import read_text
from ingot.compiler.tokenizer import encode
from ingot.errors import UsageError

WINDOW = 384  # tokens that are read at once
LEAST = 16  # positions in a user's text that tell anything
CHARACTERS = 64  # of a user's text that are looked at for each position, more than a token has

# Turns the folder of an artifact's tokenizer into a conversation as tokens, as its template renders
# it; none where there is no template.
Conversation = Callable[[Path], Sequence[int]]


@dataclass(frozen=True, slots=True)
class ScoredText:
    """Tokens that are read at once; all positions but the first are scored."""

    name: str
    tokens: Sequence[int]


def own_texts(tokenizer: Tokenizer, conversation: Sequence[int]) -> dict[str, list[int]]:
    """The bundled texts as tokens, by name; a conversation is one of them where there is one."""
    found = {
        name: encode(tokenizer, text, name, add_special_tokens=True) for name, text in TEXTS.items()
    }
    return found | ({"a conversation": [*conversation]} if conversation else {})


def paragraphs(tokenizer: Tokenizer, longest: int) -> list[ScoredText]:
    """The paragraphs of the bundled texts, each a text of its own."""
    return [
        ScoredText(name, encode(tokenizer, part, name, add_special_tokens=True)[:longest])
        for name, text in TEXTS.items()
        for part in text.split("\n\n")
        if part.strip()
    ]


def given_text(path: Path, tokenizer: Tokenizer, positions: int) -> dict[str, list[int]]:
    """The beginning of a user's text as tokens. Raises UsageError for one that tells nothing."""
    what = "the quality text"
    text = read_text(path, what)[: positions * CHARACTERS]
    tokens = encode(tokenizer, text, f"{what} {path}", add_special_tokens=True)
    if len(tokens) <= LEAST:
        raise UsageError(
            f"the quality text {path} is too short: {len(tokens)} tokens",
            hint="Give a text that resembles what the model is for; several hundred tokens tell "
            "more than the least that is taken, 17.",
        )
    return {path.name: tokens}


def pieces_of(texts: Mapping[str, Sequence[int]], positions: int, longest: int) -> list[ScoredText]:
    """The beginnings of texts: as many positions of each, and so many in all, as far as they go.

    What is longer than a window, or than the model takes, is read in pieces, each of which begins
    as the text does: with BOS, where the tokenizer adds one.
    """
    size = min(WINDOW, longest)
    found: list[ScoredText] = []
    # The shortest come first: the others make up for what they lack.
    order = sorted(texts.items(), key=lambda each: len(each[1]))
    for index, (name, tokens) in enumerate(order):
        count = -(-positions // (len(order) - index))
        for piece in _windows(tokens, size):
            cut = piece[: count + 1]
            if len(cut) > 1:
                found.append(ScoredText(name, cut))
                count -= len(cut) - 1
                positions -= len(cut) - 1
    return found


def _windows(tokens: Sequence[int], size: int) -> Iterator[list[int]]:
    yield [*tokens[:size]]
    for start in range(size, len(tokens), max(size - 1, 1)):
        yield [tokens[0], *tokens[start : start + size - 1]][:size]
