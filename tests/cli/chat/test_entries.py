"""Entries of one line and of several."""

from __future__ import annotations

import pytest

from ingot.cli.chat.entries import CONTINUED, PROMPT, Entry, read_entry


def entered(text: str) -> tuple[list[Entry], list[str]]:
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
        ("hello there", Entry("", "hello there")),
        ("one\\\ntwo\\\nthree", Entry("", "one\ntwo\nthree")),
        ("one\\", Entry("", "one\n")),  # the input ends
        ('"""one\ntwo"""', Entry("", "one\ntwo")),
        ('"""\n  one\n\ntwo\\\n"""', Entry("", "  one\n\ntwo\\")),
        ('"""one"""', Entry("", "one")),
        ('"""one\ntwo', Entry("", "one\ntwo")),  # the input ends
        ('what does """ mean?', Entry("", 'what does """ mean?')),
        ("/bye", Entry("/bye", "")),
        ("/set  top-k  5 ", Entry("/set", "top-k  5")),
        ("/system Be\\\nbrief.", Entry("/system", "Be\nbrief.")),
        ('/system """Be\nbrief."""', Entry("/system", "Be\nbrief.")),
        ('"""/bye"""', Entry("", "/bye")),
        (" /bye", Entry("", " /bye")),
    ],
)
def test_an_entry(text, entry):
    assert entered(text)[0] == [entry]


def test_prompts_tell_whether_an_entry_begins():
    entries, prompts = entered('one\\\ntwo\n"""three\n"""\n/bye')
    assert entries == [Entry("", "one\ntwo"), Entry("", "three"), Entry("/bye", "")]
    assert prompts == [PROMPT, CONTINUED, PROMPT, CONTINUED, PROMPT]
