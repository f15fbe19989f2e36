"""A conversation with a model that is open in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.cli.chat.answer import ShownAnswer
from ingot.cli.chat.conversation import Message
from ingot.cli.chat.display import Display
from ingot.cli.chat.options import Options
from ingot.errors import RequestError
from ingot.runtime.answers import tokenizer_style

if TYPE_CHECKING:
    from ingot.cli.run_stats import Figures
    from ingot.runtime.llm import LLM


class LocalPartner:
    """An open model; `load_seconds` is what opening it took, and `template` the chat template that
    it answers by, its own if None."""

    def __init__(self, llm: LLM, load_seconds: float, template: str | None = None) -> None:
        self._llm = llm
        self._template = template
        self._style = tokenizer_style(llm.get_tokenizer(), template)
        self._load_seconds = load_seconds
        self.name = llm.artifact.manifest.model.name
        self.max_model_len: int | None = llm.max_model_len

    def begin(self, messages: list[Message], options: Options) -> ShownAnswer:
        prompt = self._llm.chat_prompt(
            messages,
            chat_template=self._template,
            chat_template_kwargs=options.template_variables,
        )
        self._check_room(len(prompt["prompt_token_ids"]), messages)
        return ShownAnswer(prompt, self._style, options.max_thinking_tokens)

    def write(self, answer: ShownAnswer, options: Options, display: Display) -> None:
        answer.write(self._llm, options.params, display)

    def figures(self, answer: ShownAnswer) -> Figures:
        return answer.stats.figures(self._llm.artifact, self._load_seconds)

    def check_system(self) -> None:
        self._llm.get_tokenizer().check_system(self._template)

    def num_tokens(self, messages: list[Message]) -> int:
        if not messages:
            return 0
        prompt = self._llm.chat_prompt(
            messages, chat_template=self._template, add_generation_prompt=False
        )
        return len(prompt["prompt_token_ids"])

    def _check_room(self, num_tokens: int, messages: list[Message]) -> None:
        room = self._llm.max_model_len - 1  # an answer has a token
        if num_tokens <= room:
            return
        if any(message["role"] == "assistant" for message in messages):
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
