"""Parts of an answer, handed out while they come: text, reasoning and calls of tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ingot.runtime.answers.coming import (
    SPACE,
    Broken,
    Coming,
    Cut,
    Marks,
    Reading,
    marks_of,
    trimmed,
)
from ingot.runtime.answers.deltas import AnswerDelta, CallDelta
from ingot.runtime.answers.formats import Head
from ingot.runtime.answers.values import JSON, Notation, reader_of

NAMES = ("name", "tool_name")
ARGUMENTS = ("arguments", "parameters")
MAX_NAME = 256
HELD = 256
GAP = "\n\n"


class CallReader:
    """Tells text from calls, which are handed out while they come.

    A call is held back until its arguments are whole, or longer than HELD characters: a broken one
    is text. What breaks later leaves the call as far as it was well formed, and the rest is text.
    Where the text ends within it, there is no rest: what was held back is a piece of a tag.

    Args:
        tools: the schema of each tool's arguments. An object with another name is no call.
        new_id: gives an id that no other call has.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any]], new_id: Callable[[], str]) -> None:
        self.coming = Coming()
        self.num_calls = 0
        self.deltas: list[AnswerDelta] = []
        self._tools = tools
        self._new_id = new_id
        self._inside = False  # whether a call of the attempt was handed out
        self._own_id = ""  # that the model wrote for the call that comes
        self._ids: set[str] = set()
        self._had = {"content": False, "reasoning": False}
        self._gaps = {"content": False, "reasoning": False}

    def prose(self, marks: Marks, *, cut: bool = False) -> Reading[str]:
        """Hands out text up to one of these marks, and passes that; empty at the end.

        White space before a mark waits for what follows it. At the end, half a mark is text, unless
        it must be one that was `cut`: so it is behind a call.
        """
        coming = self.coming
        while True:
            if found := marks.find(coming.text):
                coming.at = trimmed(coming.text, found.start())
                self.give_text()
                coming.at = coming.text.find(found.group()) + len(found.group())
                return found.group()
            half = marks.half(coming.text)
            coming.at = trimmed(coming.text, half)
            if coming.ended:
                if len(coming.text) - half <= 1 or not (cut or self.num_calls):
                    coming.at = len(coming.text)
                self.give_text()
                coming.text, coming.at = "", 0
                return ""
            self.give_text()
            yield

    def thought(self, marks: Marks) -> Reading[str]:
        """Hands out reasoning up to one of these marks, and passes that and the white space behind
        it; empty where the text ends first."""
        coming = self.coming
        yield from coming.skip_space()
        coming.take()
        while not (found := marks.find(coming.text)):
            half = marks.half(coming.text)
            whole = coming.ended and half == len(coming.text) - 1  # a character alone is no tag
            self._give("reasoning", len(coming.text) if whole else trimmed(coming.text, half))
            if coming.ended:
                coming.text, coming.at = "", 0
                return ""
            yield
        self._give("reasoning", trimmed(coming.text, found.start()))
        mark = found.group()
        coming.at = coming.text.find(mark) + len(mark)
        yield from coming.skip_space()
        coming.take()
        return mark

    def next_message(self) -> None:
        """Has a blank line stand between what was handed out and what follows."""
        self._gaps = dict(self._had)

    def give_text(self) -> None:
        """Hands out what was read as text."""
        self._give("content", self.coming.at)

    def _give(self, part: str, end: int) -> None:
        self.coming.at = end
        if text := self.coming.take():
            if self._gaps[part]:
                text, self._gaps[part] = GAP + text, False
            self._had[part] = True
            self.deltas.append(
                AnswerDelta(content=text) if part == "content" else AnswerDelta(reasoning=text)
            )

    def attempt(self, body: Reading[None]) -> Reading[bool]:
        """Reads calls; where they are broken, what is left of them is text."""
        try:
            yield from body
        except Broken as error:
            coming, inside, self._inside = self.coming, self._inside, False
            if inside and isinstance(error, Cut):
                coming.at = len(coming.text)
                coming.take()
            elif inside and not coming.text[: coming.at].strip(SPACE):
                coming.take()
            self.give_text()
            return False
        self.coming.take()
        self._inside = False
        return True

    def call(self) -> Reading[None]:
        """Reads an object with the name of a tool and its arguments."""
        coming, name, kept, given = self.coming, "", "{}", False
        yield from coming.expect("{")
        char = yield from coming.skip_space()
        while char != "}":
            key = json.loads((yield from coming.string()))
            yield from coming.skip_space()
            yield from coming.expect(":")
            char = yield from coming.skip_space()
            if key in NAMES and not name:
                name = self.known(json.loads((yield from coming.string())))
            elif key in ARGUMENTS and char == "{" and name and not given:
                given = True
                yield from self.arguments(name)
            elif key in ARGUMENTS and char == "n":
                yield from coming.expect("null")
            elif key in ARGUMENTS and not given:
                start = coming.at
                if char != "{":
                    raise coming.wrong("{")
                yield from coming.json()
                kept = coming.text[start : coming.at]
            else:
                yield from coming.json()
            if (yield from coming.skip_space()) == ",":
                coming.at += 1
                char = yield from coming.skip_space()
            else:
                break
        if not given:
            yield from coming.expect("}")
            self._begin(self.known(name), coming.at)
            self._fragment(kept)
        else:
            yield from coming.tail("}")  # small models forget it

    def named(self, head: Head, opened: str) -> Reading[None]:
        """Reads a name, and arguments behind it; `opened` is the mark that was passed last."""
        if head.begin and opened != head.begin:
            yield from self.coming.expect(head.begin)
        start = self.coming.at
        name = yield from self.name_until(head.ends, head.prefix)
        if head.until:
            mark = yield from self.pass_until(head.until)
            if head.count:
                written = self.coming.text[start : self.coming.at - len(mark)].strip(SPACE)
                self._own_id = written if head.count in written else ""
            if mark == "{" and head.arguments == JSON:
                self.coming.at -= 1
        yield from self.coming.skip_space()
        yield from self.arguments(name, head.arguments)

    def arguments(self, name: str, notation: Notation = JSON) -> Reading[None]:
        """Hands out a call, at the latest when its arguments are whole."""
        coming, start, begun = self.coming, self.coming.at, False
        reader = reader_of(notation, coming, self._tools[name])

        def hand_out() -> None:
            nonlocal begun
            if not begun:
                self._begin(name, start)
                begun = True
            self._fragment(reader.written(coming.take()))

        try:
            for _ in reader.read():
                if begun or coming.at - start >= HELD:
                    hand_out()
                yield
        except Broken:  # at the same place, wherever the text was cut
            if begun or coming.at - start >= HELD:
                hand_out()
            raise
        hand_out()

    def finish_call(self) -> None:
        """Forgets what was read of a call: if the next one is broken, it is not repeated."""
        self.coming.take()

    def name_until(self, ends: tuple[str, ...], prefix: str = "") -> Reading[str]:
        """Reads the bare name of a tool, up to one of these marks, which is not passed."""
        coming, marks = self.coming, marks_of(*ends)
        while not (found := marks.find(coming.text, coming.at)):
            part = coming.text[coming.at : marks.half(coming.text, coming.at)]
            if not self._may_begin(part.lstrip(SPACE), prefix):
                raise Broken
            if coming.ended:
                raise Cut
            yield
        name = coming.text[coming.at : found.start()].strip(SPACE)
        if name not in self._tools:
            name = self.known(name.removeprefix(prefix))
        coming.at = found.start()
        return name

    def pass_until(self, ends: tuple[str, ...]) -> Reading[str]:
        """Passes a short text, and one of these marks; the mark."""
        coming, marks = self.coming, marks_of(*ends)
        while not (found := marks.find(coming.text, coming.at)):
            if marks.half(coming.text, coming.at) - coming.at > MAX_NAME:
                raise Broken
            if coming.ended:
                raise Cut
            yield
        if found.start() - coming.at > MAX_NAME:
            raise Broken
        coming.at = found.end()
        return found.group()

    def _may_begin(self, part: str, prefix: str) -> bool:
        """Returns whether a text may be the beginning of a tool's name, and white space."""
        part = part.rstrip(SPACE)
        return len(part) <= MAX_NAME and any(
            f"{before}{name}".startswith(part) for name in self._tools for before in {"", prefix}
        )

    def known(self, name: object) -> str:
        """The name of a tool. Raises Broken for any other."""
        if not isinstance(name, str) or name not in self._tools:
            raise Broken
        return name

    def _begin(self, name: str, start: int) -> None:
        """Hands out the beginning of a call, whose arguments begin at this place."""
        self.coming.text = self.coming.text[start:]
        self.coming.at -= start
        self._inside = True
        is_new = self._own_id and self._own_id not in self._ids
        call_id = self._own_id if is_new else self._new_id()
        self._ids.add(call_id)
        self.deltas.append(AnswerDelta(call=CallDelta(self.num_calls, id=call_id, name=name)))
        self.num_calls += 1

    def _fragment(self, text: str) -> None:
        if text:
            self.deltas.append(AnswerDelta(call=CallDelta(self.num_calls - 1, text)))
