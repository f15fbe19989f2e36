"""Reads calls of tools in the formats that models write them in."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from ingot.serve.chat.coming import SPACE, Broken, Coming, Reading, settled
from ingot.serve.chat.deltas import AnswerDelta, CallDelta

ARGUMENTS = ("arguments", "parameters")
MAX_NAME = 256
HELD = 256


class CallReader:
    """Tells text from calls, which are handed out while they come.

    A call is held back until its arguments are whole, or longer than HELD characters: a broken one
    is text. What breaks later leaves the call as far as it was well formed, and the rest is text.

    Args:
        names: of the tools. An object with another name is no call.
        new_id: gives an id that no other call has.
    """

    def __init__(self, names: Collection[str], new_id: Callable[[], str]) -> None:
        self.coming = Coming()
        self.num_calls = 0
        self.deltas: list[AnswerDelta] = []
        self._names = names
        self._new_id = new_id
        self._inside = False  # whether a call of the attempt was handed out

    def prose(self, *marks: str) -> Reading[str]:
        """Hands out text up to one of these marks, and passes that; empty at the end.

        White space before a mark waits for what follows it.
        """
        coming = self.coming
        while True:
            found = [(at, mark) for mark in marks if (at := coming.text.find(mark)) >= 0]
            if found:
                at, mark = min(found)
                coming.at = len(coming.text[:at].rstrip(SPACE))
                self.give_text()
                coming.at = coming.text.find(mark) + len(mark)
                return mark
            coming.at = len(coming.text) if coming.ended else settled(coming.text, marks)
            self.give_text()
            if coming.ended:
                return ""
            yield

    def give_text(self) -> None:
        """Hands out what was read as text."""
        if text := self.coming.take():
            self.deltas.append(AnswerDelta(content=text))

    def attempt(self, body: Reading[None]) -> Reading[bool]:
        """Reads calls; where they are broken, what is left of them is text."""
        try:
            yield from body
        except Broken:
            if self._inside and not self.coming.text[: self.coming.at].strip(SPACE):
                self.coming.take()
            self._inside = False
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
            if key == "name" and not name:
                name = self._known(json.loads((yield from coming.string())))
            elif key in ARGUMENTS and char == "{" and name and not given:
                given = True
                yield from self.arguments(name)
            elif key in ARGUMENTS and not given:
                start = coming.at
                yield from self._object()
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
            self._begin(self._known(name), coming.at)
            self._fragment(kept)
        else:
            yield from coming.starts_with("}")  # small models forget it

    def arguments(self, name: str) -> Reading[None]:
        """Hands out a call, at the latest when its arguments are whole."""
        coming, start, begun = self.coming, self.coming.at, False

        def hand_out() -> None:
            nonlocal begun
            if not begun:
                self._begin(name, start)
                begun = True
            self._fragment(coming.take())

        try:
            for _ in self._object():
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

    def name_until(self, *ends: str) -> Reading[str]:
        """Reads the bare name of a tool, up to one of these characters."""
        start = self.coming.at
        yield from self.pass_until(*ends)
        return self._known(self.coming.text[start : self.coming.at].strip(SPACE))

    def pass_until(self, *ends: str) -> Reading[None]:
        """Passes a short text, up to one of these characters."""
        coming, most = self.coming, self.coming.at + MAX_NAME
        while (char := (yield from coming.peek())) not in ends:
            if not char or coming.at > most:
                raise Broken
            coming.at += 1

    def _object(self) -> Reading[None]:
        if (yield from self.coming.peek()) != "{":
            raise Broken
        yield from self.coming.json()

    def _known(self, name: object) -> str:
        if not isinstance(name, str) or name not in self._names:
            raise Broken
        return name

    def _begin(self, name: str, start: int) -> None:
        """Hands out the beginning of a call, whose arguments begin at this place."""
        self.coming.text = self.coming.text[start:]
        self.coming.at -= start
        self._inside = True
        self.deltas.append(
            AnswerDelta(call=CallDelta(self.num_calls, id=self._new_id(), name=name))
        )
        self.num_calls += 1

    def _fragment(self, text: str) -> None:
        if text:
            self.deltas.append(AnswerDelta(call=CallDelta(self.num_calls - 1, text)))
