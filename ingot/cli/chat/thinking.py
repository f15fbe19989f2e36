"""Tells what a model thinks from what it answers."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def split(text: str, *, inside: bool, whole: bool) -> tuple[str, str]:
    """Thinking and answer in the text so far, without the tags and the white space beside them.

    Only at its beginning does a text think; with `inside`, the prompt has opened the thinking.
    Unless the text is `whole`, its end is left out while it may be part of a tag. So both results
    only ever get longer as the text does.
    """
    if not inside:
        begin = text.lstrip()
        if not begin.startswith(OPEN):
            undecided = OPEN.startswith(begin) and not whole
            return "", "" if undecided else text
        text = begin.removeprefix(OPEN)
    thinking, closed, answer = text.partition(CLOSE)
    if not (closed or whole):
        thinking = _without_part_of_tag(thinking)
    return thinking.strip(), answer.lstrip()


def _without_part_of_tag(text: str) -> str:
    sizes = range(len(CLOSE) - 1, 0, -1)
    part = next((size for size in sizes if text.endswith(CLOSE[:size])), 0)
    return text[: len(text) - part]
