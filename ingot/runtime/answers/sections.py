"""Reads an answer by the rows of the tables: reasoning, text, sections of calls, messages."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ingot.runtime.answers.calls import CallReader
from ingot.runtime.answers.coming import Cut, Reading, marks_of
from ingot.runtime.answers.formats import ToolFormat
from ingot.runtime.answers.thoughts import Channels, Shell, Thought


@dataclass(frozen=True, slots=True)
class Rows:
    """What an answer is read by; a part that has no row is text.

    `guesses`: where nothing says how reasoning is marked, the beginning of an answer tells which of
    these it is.
    """

    thought: Thought | None = None
    shell: Shell | None = None
    tools: ToolFormat | None = None
    guesses: tuple[Thought, ...] = ()

    @property
    def is_plain(self) -> bool:
        """True if all behind the reasoning is text."""
        return not (self.tools or self.shell or (self.thought and self.thought.again))


def read(reader: CallReader, rows: Rows, inside: bool) -> Reading[None]:
    """Reads an answer; what is left of it then is text. `inside`: the prompt began to reason."""
    thought = rows.thought or (yield from _guessed(reader, rows.guesses))
    rows = replace(rows, thought=thought)
    if thought and thought.channels:
        yield from _messages(reader, thought.channels, inside)
        return
    if thought:
        yield from _first_thought(reader, thought, inside)
    if not rows.is_plain:
        yield from _body(reader, rows)


def _guessed(reader: CallReader, guesses: tuple[Thought, ...]) -> Reading[Thought | None]:
    """The way of reasoning that the answer begins with, of which nothing is passed."""
    yield from reader.coming.skip_space() if guesses else ()
    found = None
    for each in guesses:
        if (yield from reader.coming.starts_with(each.begin.rstrip())):
            found = each
            break
    reader.coming.at = 0
    return found


def _first_thought(reader: CallReader, row: Thought, inside: bool) -> Reading[None]:
    coming = reader.coming
    if not inside:
        yield from coming.skip_space()
        if not (yield from coming.starts_with(row.begin)):
            coming.at = 0
            return
    yield from reader.thought(marks_of(row.end))


def _body(reader: CallReader, rows: Rows) -> Reading[None]:
    """Text, and whatever marks in it begin."""
    tools, thought, shell = rows.tools, rows.thought, rows.shell
    opened = shell is not None and (yield from _opens(reader, shell))
    opens = [*(tools.opens if tools else ())]
    if thought and thought.again:
        opens.append(thought.begin)
    if shell and opened:
        opens.append(shell.end)
    if tools and tools.bare:
        yield from _bare(reader, tools)
    if not opens:
        return
    marks = marks_of(*opens)
    while mark := (yield from reader.prose(marks, cut=opened)):
        if tools and mark in tools.opens:
            yield from reader.attempt(_section(reader, tools, mark))
        elif thought and mark == thought.begin:
            reader.next_message()
            yield from reader.thought(marks_of(thought.end))
        else:
            yield from reader.coming.skip_space()
            reader.coming.take()


def _opens(reader: CallReader, shell: Shell) -> Reading[bool]:
    """Passes a tag around the whole answer."""
    coming = reader.coming
    yield from coming.skip_space()
    if not (yield from coming.starts_with(shell.begin)):
        coming.at = 0
        return False
    yield from coming.skip_space()
    coming.take()
    return True


def _bare(reader: CallReader, tools: ToolFormat) -> Reading[None]:
    """Calls as the whole answer."""
    coming = reader.coming
    char = yield from coming.skip_space()
    if char and char in tools.bare:
        yield from reader.attempt(_section(reader, tools, ""))
    else:
        coming.at = 0


def _section(reader: CallReader, row: ToolFormat, mark: str) -> Reading[None]:
    """Reads calls, and the tags around each and behind all; `mark` is what was passed before."""
    coming = reader.coming
    yield from coming.skip_space()
    listed = row.listed and (yield from coming.starts_with("["))
    more = True
    while more:
        yield from coming.skip_space()
        if row.before and mark != row.before:
            yield from coming.expect(row.before)
            yield from coming.skip_space()
        yield from _call(reader, row, mark)
        for each in row.after:
            yield from coming.skip_space()
            yield from coming.tail(each)
        reader.finish_call()
        mark, more = yield from _next(reader, row, listed)
    if listed:
        yield from coming.expect("]")
        yield from coming.skip_space()
    for _ in row.ends:
        yield from coming.tail(*row.ends)
        yield from coming.skip_space()
    yield from coming.skip_space()


def _call(reader: CallReader, row: ToolFormat, mark: str) -> Reading[None]:
    char = yield from reader.coming.peek()
    if row.object and (row.head is None or char == "{"):
        yield from reader.call()
    elif row.head:
        yield from reader.named(row.head, mark)


def _next(reader: CallReader, row: ToolFormat, listed: bool) -> Reading[tuple[str, bool]]:
    """Passes what stands between calls; the mark that was passed, and whether one more comes."""
    coming = reader.coming
    char = yield from coming.skip_space()
    if listed:
        coming.at += char == ","
        return "", char == ","
    if row.between:
        yield from coming.starts_with(row.between)
        char = yield from coming.skip_space()
    begin = row.before or (row.head.begin if row.head else "")
    if begin and (yield from coming.tail(begin)):
        return begin, True
    return "", bool(row.object) and char == "{"


def _messages(reader: CallReader, row: Channels, inside: bool) -> Reading[None]:
    """Messages, the first of which has begun with the prompt."""
    coming, ends = reader.coming, marks_of(*row.ends, row.start)
    if inside:
        yield from reader.thought(ends)
    elif (yield from coming.first_of(row.begins)):
        coming.at = 0
    else:
        yield from reader.prose(ends, cut=True)
        coming.take()
    while (yield from coming.skip_space()):
        if not (yield from reader.attempt(_message(reader, row))):
            yield from reader.prose(ends, cut=True)
            coming.take()


def _message(reader: CallReader, row: Channels) -> Reading[None]:
    """One message. A header that is cut is dropped: its tags are no text."""
    coming, ends = reader.coming, (*row.ends, row.start)
    start = coming.at
    try:
        yield from coming.expect(*row.begins)
        yield from reader.pass_until((row.message,))
    except Cut:
        coming.at = len(coming.text)
        return
    header = coming.text[start : coming.at]
    if name := _word(header, row.to).removeprefix(row.tools):
        yield from coming.skip_space()
        yield from reader.arguments(reader.known(name))
        yield from coming.skip_space()
        yield from coming.tail(*ends)
        return
    coming.take()
    reader.next_message()
    if _word(header, row.channel) in row.thinks:
        yield from reader.thought(marks_of(*ends))
    else:
        yield from reader.prose(marks_of(*ends), cut=True)


def _word(header: str, before: str) -> str:
    """The word behind this in a header; empty where it does not stand there."""
    found = re.search(f"{re.escape(before)}([^ \\n<]*)", header)
    return found[1] if found else ""
