"""A conversation as it is held: a message in, an answer out."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingot.cli.answer import Answer
from ingot.cli.chat.conversation import Conversation
from ingot.cli.chat.display import stdout_display
from ingot.cli.output import json_text
from ingot.errors import RequestError

if TYPE_CHECKING:
    from ingot.cli.answer_options import Options
    from ingot.cli.run_stats import Figures
    from ingot.runtime.llm import LLM


def note(text: str) -> None:
    """Tells the user something that is not part of an answer."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


@dataclass
class Chat:
    """A model, what was said to it and by it, and how answers are made and shown.

    `args` are those of the command line.
    """

    llm: LLM
    args: argparse.Namespace
    options: Options
    conversation: Conversation
    load_seconds: float
    last: Answer | None = None

    def say(self, text: str) -> None:
        """Sends a message and shows the answer. What was said stays if an error ends the answer.

        Raises RequestError, with nothing changed, for a message that has no room.
        """
        prompt = self.llm.chat_prompt(self.conversation.with_message(text))
        self._check_room(len(prompt["prompt_token_ids"]))
        answer = Answer(prompt, chats=True)
        display = stdout_display(self.options.think, silent=self.args.json)
        try:
            answer.write(self.llm, self.options.params, display)
        finally:
            if answer.text or answer.thinking:
                self.conversation.add(text, answer.text, answer.thinking)
                self.last = answer
        self._report(answer)

    def figures(self, answer: Answer) -> Figures:
        """How fast an answer came."""
        return answer.stats.figures(self.llm.artifact, self.load_seconds)

    def num_tokens(self) -> int:
        """Tokens of the conversation so far."""
        if not self.conversation.messages:
            return 0
        messages = self.conversation.as_list()
        prompt = self.llm.chat_prompt(messages, add_generation_prompt=False)
        return len(prompt["prompt_token_ids"])

    def _check_room(self, num_tokens: int) -> None:
        room = self.llm.max_model_len - 1  # an answer has a token
        if num_tokens <= room:
            return
        if self.conversation.messages:
            raise RequestError(
                f"the context is full: with this message the conversation has {num_tokens} "
                f"tokens, and {room} fit",
                hint="/clear begins anew; a shorter message may still fit.",
            )
        raise RequestError(
            f"the message is too long: with it the conversation has {num_tokens} tokens, and "
            f"{room} fit",
            hint="Send a shorter one.",
        )

    def _report(self, answer: Answer) -> None:
        """What is said after an answer."""
        figures = self.figures(answer) if self.args.stats else None
        if self.args.json:
            result = answer.result() | ({"stats": figures} if figures else {})
            print(json_text(result, indent=None), flush=True)  # who has left gets no other answer
        elif figures:
            note(figures.text())
        num_tokens = len(answer.prompt_token_ids) + len(answer.token_ids)
        if not (answer.text or answer.thinking):
            note("(The answer is empty, so the message is taken back.)")
        elif num_tokens >= self.llm.max_model_len:
            note(f"(The context is full: {num_tokens} tokens. /clear begins anew.)")
        elif answer.finish_reason == "length":
            note(f"(Cut after {len(answer.token_ids)} tokens; see /set max-tokens.)")
