"""Shows an answer while the model writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from ingot.cli.chat.display import Display
from ingot.cli.chat.thinking import OPEN, split
from ingot.cli.run_stats import RunStats

if TYPE_CHECKING:
    from ingot.runtime.llm import LLM
    from ingot.runtime.params import SamplingParams


class AnswerPiece(NamedTuple):
    """New text of an answer, or of the thinking before it."""

    text: str
    thinking: bool


class ShownAnswer:
    """The completion of a prompt as far as it has come.

    Args:
        prompt: its tokens, and of a chat also its text, as `LLM.chat_prompt` returns them.
        chats: whether the answer may begin with thinking, which is kept apart from its text.
    """

    def __init__(self, prompt: Mapping[str, Any], *, chats: bool) -> None:
        self.prompt_token_ids: list[int] = prompt["prompt_token_ids"]
        self.token_ids: list[int] = []
        self.text = self.thinking = ""
        self.finish_reason: str = "abort"
        self.stats = RunStats(num_prompt_tokens=len(self.prompt_token_ids))
        self._chats = chats
        self._inside = chats and prompt["prompt"].rstrip().endswith(OPEN)
        self._raw = ""

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
        stream = llm.stream({"prompt_token_ids": self.prompt_token_ids}, params)
        with closing(stream):
            for delta in self.stats.watch(stream, lambda: llm.counters().kernel_seconds):
                self._raw += delta.text
                self.token_ids += delta.token_ids
                self.finish_reason = delta.finish_reason or self.finish_reason
                yield from self._news(whole=delta.finish_reason is not None)
        after = llm.counters()
        self.stats.num_draft_tokens = after.num_draft_tokens - before.num_draft_tokens
        self.stats.num_accepted_tokens = after.num_accepted_tokens - before.num_accepted_tokens

    def _news(self, *, whole: bool) -> Iterator[AnswerPiece]:
        thinking, text = (
            split(self._raw, inside=self._inside, whole=whole) if self._chats else ("", self._raw)
        )
        news = (
            AnswerPiece(thinking[len(self.thinking) :], True),
            AnswerPiece(text[len(self.text) :], False),
        )
        self.thinking, self.text = thinking, text
        yield from (piece for piece in news if piece.text)
