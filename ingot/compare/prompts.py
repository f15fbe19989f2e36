"""The prompts that two sides are compared on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingot.compare.artifact_side import ArtifactSide
from ingot.compare.reference_side import ReferenceSide
from ingot.compare.sides import Side
from ingot.compiler.prompt_file import GivenPrompt
from ingot.errors import RequestError, UsageError
from ingot.runtime.goldens import read_golden, read_rows

LONGEST_RANDOM = 128  # tokens


@dataclass(frozen=True, slots=True)
class ComparedPrompt:
    """Tokens, and where they come from, such as "line 3 of prompts.txt"."""

    where: str
    tokens: tuple[int, ...]


def max_len(sides: Sequence[Side]) -> int | None:
    """The longest sequence that all sides take; None where none says it."""
    return min((side.max_model_len for side in sides if side.max_model_len), default=None)


def given_prompts(given: Sequence[GivenPrompt], sides: Sequence[Side]) -> list[ComparedPrompt]:
    """The prompts that `read_prompts` found in a file, as tokens.

    Raises:
        UsageError: texts where no side has a tokenizer, or where two tokenizers differ.
        RequestError: a prompt that a side cannot take.
    """
    prompts = [
        ComparedPrompt(
            where, tuple(_encoded(where, prompt, sides) if isinstance(prompt, str) else prompt)
        )
        for where, prompt in given
    ]
    for prompt in prompts:
        _check(prompt, sides)
    return prompts


def random_prompts(count: int, seed: int, sides: Sequence[Side]) -> list[ComparedPrompt]:
    """Prompts of random tokens and lengths, the same for the same seed."""
    rng = np.random.default_rng(seed)
    longest = min(LONGEST_RANDOM, max_len(sides) or LONGEST_RANDOM)
    lengths = rng.integers(1, longest + 1, count).tolist()
    tokens = (rng.integers(0, sides[0].vocab_size, length).tolist() for length in lengths)
    return [ComparedPrompt(f"random prompt {i}", tuple(each)) for i, each in enumerate(tokens, 1)]


def golden_prompts(sides: Sequence[Side]) -> list[ComparedPrompt]:
    """Golden prompts of the first artifact; without one, those that a compile would make.

    They are cut to what both sides take. Raises UsageError where there is no tokenizer.
    """
    artifact = next((side for side in sides if isinstance(side, ArtifactSide)), None)
    if artifact is not None:
        found = golden_tokens(artifact)
    else:
        found = _made(sides)
    cut = dict.fromkeys(tuple(tokens[: max_len(sides)]) for tokens in found)
    return [ComparedPrompt(f"golden prompt {i}", tokens) for i, tokens in enumerate(cut, 1)]


def golden_tokens(side: ArtifactSide) -> list[list[int]]:
    """The tokens of an artifact's golden prompts."""
    if side.task == "generate":
        return [prompt.tokens for prompt in read_golden(side.artifact).prompts]
    return [prompt.tokens for prompt in read_rows(side.artifact, side.manifest.main).prompts]


def _made(sides: Sequence[Side]) -> list[list[int]]:
    from ingot.compiler.golden import golden_prompts
    from ingot.compiler.golden_text import TEXT, added_before
    from ingot.compiler.options import CompileOptions

    text, whole = (
        _encoded("the text of the golden prompts", TEXT, sides, add_special_tokens=special)
        for special in (False, True)
    )
    configs = [side.config for side in sides if isinstance(side, ReferenceSide)]
    prompts = golden_prompts(
        text or [0],
        added_before(text, whole),
        page_size=CompileOptions().page_size,
        max_model_len=max_len(sides) or LONGEST_RANDOM,
        windows=[window for config in configs for window in config.windows],
    )
    return [[*prompt.tokens] for prompt in prompts]


def _encoded(
    where: str, text: str, sides: Sequence[Side], *, add_special_tokens: bool = True
) -> list[int]:
    """The tokens of a text, by every tokenizer that there is.

    Raises UsageError where there is none, or where they differ: the models would be compared on
    what their users would never give them.
    """
    found = {
        side.name: side.tokenizer.encode(text, add_special_tokens)
        for side in sides
        if side.tokenizer is not None
    }
    if not found:
        raise UsageError(
            "neither side has a tokenizer",
            hint="Give --random N, or a file of --prompts with token ids.",
        )
    (first, tokens), *others = found.items()
    for name, other in others:
        if other != tokens:
            raise UsageError(
                f"the tokenizers differ: {where} is {_short(tokens)} to {first}, and "
                f"{_short(other)} to {name}",
                hint="To compare the models alone: --random N, or --prompts with token ids.",
            )
    return tokens


def _short(tokens: Sequence[int], most: int = 8) -> str:
    return f"[{', '.join(map(str, tokens[:most]))}{', ...' if len(tokens) > most else ''}]"


def _check(prompt: ComparedPrompt, sides: Sequence[Side]) -> None:
    """Raises RequestError for a prompt that a side cannot take."""
    if not prompt.tokens:
        raise RequestError(f"{prompt.where} has no tokens", hint="Leave it out.")
    unknown = [token for token in prompt.tokens if not 0 <= token < sides[0].vocab_size]
    if unknown:
        raise RequestError(
            f"{prompt.where} has token {unknown[0]}",
            hint=f"The vocabulary has the tokens 0 to {sides[0].vocab_size - 1}.",
        )
    for side in sides:
        if side.max_model_len is not None and len(prompt.tokens) > side.max_model_len:
            raise RequestError(
                f"{prompt.where} has {len(prompt.tokens)} tokens",
                hint=f"{side.name} takes at most {side.max_model_len}.",
            )
