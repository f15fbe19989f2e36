"""Entries of one line and of several."""

from __future__ import annotations

import pytest

from ingot.cli.chat.loop import CONTINUED, PROMPT, ChatEntry, read_entry


def entered(text: str) -> tuple[list[ChatEntry], list[str]]:
    """All entries in a text, and the prompts that were shown."""
    lines, prompts = iter(text.split("\n")), []

    def read(prompt: str) -> str:
        prompts.append(prompt)
        for line in lines:
            return line
        raise EOFError

    entries = []
    while True:
        try:
            entries.append(read_entry(read))
        except EOFError:
            return entries, prompts[:-1]


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("hello there", ChatEntry("", "hello there")),
        ("one\\\ntwo\\\nthree", ChatEntry("", "one\ntwo\nthree")),
        ("one\\", ChatEntry("", "one\n")),  # the input ends
        ('"""one\ntwo"""', ChatEntry("", "one\ntwo")),
        ('"""\n  one\n\ntwo\\\n"""', ChatEntry("", "  one\n\ntwo\\")),
        ('"""one"""', ChatEntry("", "one")),
        ('"""one\ntwo', ChatEntry("", "one\ntwo")),  # the input ends
        ('what does """ mean?', ChatEntry("", 'what does """ mean?')),
        ("/bye", ChatEntry("/bye", "")),
        ("/set  top-k  5 ", ChatEntry("/set", "top-k  5")),
        ("/system Be\\\nbrief.", ChatEntry("/system", "Be\nbrief.")),
        ('/system """Be\nbrief."""', ChatEntry("/system", "Be\nbrief.")),
        ('"""/bye"""', ChatEntry("", "/bye")),
        (" /bye", ChatEntry("", " /bye")),
    ],
)
def test_an_entry(text, entry):
    assert entered(text)[0] == [entry]


def test_prompts_tell_whether_an_entry_begins():
    entries, prompts = entered('one\\\ntwo\n"""three\n"""\n/bye')
    assert entries == [ChatEntry("", "one\ntwo"), ChatEntry("", "three"), ChatEntry("/bye", "")]
    assert prompts == [PROMPT, CONTINUED, PROMPT, CONTINUED, PROMPT]
