"""What the outputs of a chat say: reasoning, text and calls of tools, beside their raw text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ingot.runtime.answers.deltas import AnswerDelta, WrittenCall, join
from ingot.runtime.answers.reader import AnswerReader
from ingot.runtime.answers.style import Style
from ingot.runtime.output import CompletionOutput, FunctionCall, RequestOutput, ToolCall
from ingot.runtime.params import RequestOutputKind, SamplingParams
from ingot.runtime.stop_strings import StopStrings
from ingot.runtime.tokenizer import Tokenizer

Tools = Sequence[Mapping[str, Any]]


class ChatOutputs:
    """Reads the outputs of one chat, in the order in which they come.

    Args:
        style: how the model marks what it says.
        prompt: as `chat_prompt` returns it.
        tools: that the model may call; they were checked.
        params: that it is asked with. A bound of reasoning needs more of them, and `params` have
            that.

    Raises RequestError for a bound of reasoning where nothing marks it.
    """

    def __init__(
        self,
        style: Style,
        prompt: Mapping[str, Any],
        tools: Tools | None,
        params: SamplingParams,
        tokenizer: Tokenizer,
        max_thinking_tokens: int | None = None,
    ) -> None:
        self._style, self._prompt, self._tools = style, prompt, tools
        self._tokenizer = tokenizer
        needed = style.params(prompt["prompt"], tools, None, max_thinking_tokens)
        self.params = params if max_thinking_tokens is None else replace(params, **needed)
        self._hidden = "skip_special_tokens" in needed and self.params.skip_special_tokens
        self._completions: dict[int, _Completion] = {}

    def read(self, output: RequestOutput) -> RequestOutput:
        """The output, with what its completions say. Without texts there is nothing to read."""
        if not self.params.detokenize:
            return output
        return replace(output, outputs=[self._told(each) for each in output.outputs])

    def _told(self, output: CompletionOutput) -> CompletionOutput:
        if output.index not in self._completions:
            self._completions[output.index] = self._completion()
        return self._completions[output.index].told(output)

    def _completion(self) -> _Completion:
        text = _HiddenText(self._tokenizer, self._prompt, self.params) if self._hidden else None
        reader = self._style.reader(self._prompt["prompt"], tools=self._tools)
        is_delta = self.params.output_kind is RequestOutputKind.DELTA
        return _Completion(reader, text, is_delta)


class _Completion:
    """One completion of a chat. `hidden` gives its text where that lacks the marks."""

    def __init__(
        self, reader: AnswerReader | None, hidden: _HiddenText | None, is_delta: bool
    ) -> None:
        self._reader, self._hidden, self._is_delta = reader, hidden, is_delta
        self._deltas: list[AnswerDelta] = []
        self._num_tokens = self._num_chars = 0
        self._finished = False

    def told(self, output: CompletionOutput) -> CompletionOutput:
        """The output with what it says; of one that is a delta, the calls come with the last."""
        new = [] if self._finished else self._read(output)
        self._finished = output.finished()
        self._deltas += new
        texts = [delta for delta in new if delta.call is None] if self._is_delta else self._deltas
        calls = [] if self._is_delta and not self._finished else join(self._deltas).calls
        said = join(texts)
        return replace(
            output,
            content=said.content,
            reasoning=said.reasoning or None,
            tool_calls=[_call(each) for each in calls],
        )

    def _read(self, output: CompletionOutput) -> list[AnswerDelta]:
        if self._hidden:
            tokens = output.token_ids[0 if self._is_delta else self._num_tokens :]
            self._num_tokens += len(tokens)
            text = self._hidden.push(tokens, output)
        else:
            text = output.text[0 if self._is_delta else self._num_chars :]
            self._num_chars += len(text)
        if self._reader is None:
            return [AnswerDelta(content=text)]
        last = self._reader.finish if output.finished() else list
        return [*self._reader.feed(text), *last()]


def _call(call: WrittenCall) -> ToolCall:
    return ToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))


class _HiddenText:
    """The text of a completion with its special tokens, which its output lacks."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Mapping[str, Any], params: SamplingParams
    ) -> None:
        spaces = params.spaces_between_special_tokens
        self._tokenizer, self._params = tokenizer, params
        self._detokenizer = tokenizer.detokenizer(False, spaces, prompt["prompt_token_ids"])
        self._stops = StopStrings(params.stops, include=params.include_stop_str_in_output)
        self._num_tokens = 0

    def push(self, token_ids: Sequence[int], output: CompletionOutput) -> str:
        """The text that new tokens add."""
        pieces = []
        for place, token in enumerate(token_ids, start=1):
            self._num_tokens += 1
            ended = place == len(token_ids) and self._ends(token, output)
            text = "" if ended else self._detokenizer.push(token)
            armed = self._num_tokens >= self._params.min_tokens
            pieces.append(self._stops.push(text, armed=armed))
        if output.finished():
            text = self._detokenizer.finish(cut=output.finish_reason == "length")
            pieces += (self._stops.push(text), self._stops.finish())
        return "".join(pieces)

    def _ends(self, token: int, output: CompletionOutput) -> bool:
        """Returns whether the last token only stops the completion, and is no part of its text."""
        shows = self._params.include_stop_str_in_output or isinstance(output.stop_reason, str)
        if output.finish_reason != "stop" or shows:
            return False
        return output.stop_reason is not None or not self._tokenizer.decode([token])
