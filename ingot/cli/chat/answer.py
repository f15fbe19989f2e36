"""Shows an answer while the model writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ingot.cli.chat.display import Display
from ingot.cli.chat.thinking import AnswerParts, AnswerPiece
from ingot.cli.run_stats import RunStats

if TYPE_CHECKING:
    from ingot.runtime.answers import AnswerReader, Style
    from ingot.runtime.llm import LLM
    from ingot.runtime.params import SamplingParams


class ShownAnswer:
    """The completion of a prompt as far as it has come.

    Args:
        prompt: its tokens, and of a chat also its text, as `LLM.chat_prompt` returns them.
        style: how the model marks thinking in a chat, which is kept apart from its text; None: it
            continues a text.
        max_thinking_tokens: the most tokens of that.

    Raises RequestError for a bound of thinking where nothing marks it.
    """

    def __init__(
        self,
        prompt: Mapping[str, Any],
        style: Style | None = None,
        max_thinking_tokens: int | None = None,
    ) -> None:
        self.prompt_token_ids: list[int] = prompt["prompt_token_ids"]
        self.token_ids: list[int] = []
        self.finish_reason: str = "abort"
        self.stats = RunStats(num_prompt_tokens=len(self.prompt_token_ids))
        self._parts = AnswerParts(_reader(style, prompt["prompt"]) if style else None)
        self._needed = (
            style.params(prompt["prompt"], max_thinking_tokens=max_thinking_tokens) if style else {}
        )

    @property
    def text(self) -> str:
        """What it says, without what the model thinks before."""
        return self._parts.text

    @property
    def thinking(self) -> str:
        """What the model thinks."""
        return self._parts.thinking

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and the answer."""
        return len(self.prompt_token_ids) + len(self.token_ids)

    @property
    def num_new(self) -> int:
        """Tokens of the answer."""
        return len(self.token_ids)

    def write(self, llm: LLM, params: SamplingParams, display: Display) -> None:
        """Generates it, and shows it as it comes. What has come stays if an error ends it."""
        with display:
            for piece in self._pieces(llm, params):
                display.show(piece.text, thinking=piece.thinking)

    def result(self) -> dict[str, Any]:
        """The answer for `--json`."""
        return {
            "text": self.text,
            **({"thinking": self.thinking} if self.thinking else {}),
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "prompt_token_ids": self.prompt_token_ids,
        }

    def _pieces(self, llm: LLM, params: SamplingParams) -> Iterator[AnswerPiece]:
        before = llm.counters()
        params = replace(params, **self._needed)
        stream = llm.stream({"prompt_token_ids": self.prompt_token_ids}, params)
        with closing(stream):
            for delta in self.stats.watch(stream, lambda: llm.counters().kernel_seconds):
                self.token_ids += delta.token_ids
                self.finish_reason = delta.finish_reason or self.finish_reason
                yield from self._parts.take(delta.text, last=delta.finish_reason is not None)
        after = llm.counters()
        self.stats.num_draft_tokens = after.num_draft_tokens - before.num_draft_tokens
        self.stats.num_accepted_tokens = after.num_accepted_tokens - before.num_accepted_tokens


def _reader(style: Style, prompt: str) -> AnswerReader:
    """A template that marks no thinking need not keep its model from it."""
    from ingot.runtime.answers import guessing_reader

    return style.reader(prompt) or guessing_reader()
