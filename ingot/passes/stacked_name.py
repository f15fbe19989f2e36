"""Names a parameter whose rows are those of several. No torch."""

from __future__ import annotations

from itertools import takewhile


def stacked_name(names: list[str]) -> str:
    """`a.q_proj.weight`, `a.k_proj.weight` -> `a.q_k_proj.weight`: what differs, joined."""
    parts = [name.split(".") for name in names]
    at = next(i for i, words in enumerate(zip(*parts, strict=False)) if len(set(words)) > 1)
    words = [part[at] for part in parts]
    suffix = common_suffix(words)
    stem = "_".join(word.removesuffix(suffix) or word for word in words)
    return ".".join((*parts[0][:at], stem + suffix, *parts[0][at + 1 :]))


def common_suffix(words: list[str]) -> str:
    """`q_proj`, `k_proj` -> `_proj`."""
    backwards = zip(*(reversed(word) for word in words), strict=False)
    alike = takewhile(lambda letters: len({*letters}) == 1, backwards)
    return "".join(letters[0] for letters in alike)[::-1]
