"""A conversation as it is held: a message in, an answer out."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from ingot.cli.chat.conversation import Conversation
from ingot.cli.chat.display import stdout_display
from ingot.cli.chat.options import Options
from ingot.cli.chat.partner import AnswerSpeed, Partner, PartnerAnswer
from ingot.cli.output import json_text


def note(text: str) -> None:
    """Tells the user something that is not part of an answer."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def cut(answer: PartnerAnswer) -> str:
    """Says that an answer was cut by a limit, and where."""
    after = "" if answer.num_new is None else f" after {answer.num_new} tokens"
    thought = answer.thinking and not answer.text.strip()
    return f"Cut{after}{', while the model was thinking' if thought else ''}"


@dataclass
class Chat:
    """Who answers, what was said to it and by it, and how answers are made and shown.

    `args` are those of the command line.
    """

    partner: Partner
    args: argparse.Namespace
    options: Options
    conversation: Conversation
    last: PartnerAnswer | None = None

    def say(self, text: str) -> None:
        """Sends a message and shows the answer. What was said stays if an error ends the answer.

        Raises RequestError, with nothing changed, for a message that has no room.
        """
        answer = self.partner.begin(self.conversation.with_message(text), self.options)
        display = stdout_display(self.options.think, silent=self.args.json)
        try:
            self.partner.write(answer, self.options, display)
        finally:
            if answer.text or answer.thinking:
                self.conversation.add(text, answer.text, answer.thinking)
                self.last = answer
        self._report(answer)

    def figures(self, answer: PartnerAnswer) -> AnswerSpeed:
        """Speed of an answer."""
        return self.partner.figures(answer)

    def num_tokens(self) -> int | None:
        """Tokens of the conversation so far, where they are known."""
        return self.partner.num_tokens(self.conversation.as_list())

    def _report(self, answer: PartnerAnswer) -> None:
        """Prints the remarks after an answer."""
        figures = self.figures(answer) if self.args.stats else None
        if self.args.json:
            result = answer.result() | ({"stats": figures} if figures else {})
            print(json_text(result, indent=None), flush=True)  # who has left gets no other answer
        elif figures:
            note(figures.text())
        most, num_tokens = self.partner.max_model_len, answer.num_tokens
        if not (answer.text or answer.thinking):
            note("(The answer is empty, so the message is taken back.)")
        elif most is not None and num_tokens is not None and num_tokens >= most:
            note(f"(The context is full: {num_tokens} tokens. /clear begins anew.)")
        elif answer.finish_reason == "length":
            note(f"({cut(answer)}; see /set max-tokens.)")
