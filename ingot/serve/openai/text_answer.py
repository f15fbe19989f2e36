"""Answers to `POST /v1/completions`: whole, or chunk by chunk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial

from msgspec import UNSET
from msgspec.structs import asdict

from ingot.serve.engine import Piece, Progress
from ingot.serve.openai.answer import Answer
from ingot.serve.openai.answers import AnswerHead, Completion, TextChoice, TextLogprobs
from ingot.serve.openai.events import encode
from ingot.serve.openai.logprobs import TextScores, prompt_logprobs
from ingot.serve.openai.order import Order

_TEXT_ALONE = b',"logprobs":null,"finish_reason":null,"stop_reason":null}'


class TextAnswer(Answer):
    """Answer to a completion request, of the jobs of all its prompts."""

    def __init__(self, order: Order, head: AnswerHead) -> None:
        super().__init__(order, head)
        request = order.request
        self._scorers = defaultdict[int, TextScores](partial(TextScores, self._texts))
        self._begun: set[int] = set()
        # Nothing but text: what most requests want, at the least cost for each token.
        special = (request.echo, request.return_token_ids, order.scores)
        self._plain = not any(special)

    def chunks(self, number: int, progress: Progress) -> bytes:
        self.counts.see(progress)
        if self._plain:
            first = number * self._order.n
            return b"".join([self._plain_event(first + p.index, p) for p in progress.pieces])
        choices = self._choices(number, progress)
        return b"".join([self._events.chunk(each) for each in choices if _says(each)])

    def whole(self, steps: Iterable[tuple[int, Progress]]) -> bytes:
        parts = defaultdict[int, list[TextChoice]](list)
        for number, progress in steps:
            self.counts.see(progress)
            for choice in self._choices(number, progress):
                parts[choice.index].append(choice)
        choices = [_joined(parts[index]) for index in sorted(parts)]
        return encode(Completion(**asdict(self._head), choices=choices, usage=self.counts.usage()))

    def _plain_event(self, index: int, piece: Piece) -> bytes:
        if piece.finish_reason is not None:
            return self._events.chunk(_choice(index, piece))
        if not piece.text:  # held back: it may be half a character
            return b""
        text = encode(piece.text)
        return self._events.chunk_of(b'{"index":%d,"text":%b%b' % (index, text, _TEXT_ALONE))

    def _choices(self, number: int, progress: Progress) -> Iterator[TextChoice]:
        first = number * self._order.n
        if number not in self._begun:
            self._begun.add(number)
            yield from self._beginnings(number, progress)
        for piece in progress.pieces:
            yield self._choice(first + piece.index, piece)

    def _choice(self, index: int, piece: Piece) -> TextChoice:
        choice = _choice(index, piece)
        if piece.logprobs is not None:
            choice.logprobs = self._scorers[index].of_piece(piece)
        if self._order.request.return_token_ids:
            choice.token_ids = piece.token_ids
        return choice

    def _beginnings(self, number: int, progress: Progress) -> Iterator[TextChoice]:
        """Choices before the first token of each completion of a prompt."""
        order, prompt = self._order, self._order.prompts[number]
        request, scores = order.request, progress.prompt_logprobs
        if not (request.echo or request.return_token_ids or scores):
            return
        for index in range(number * order.n, (number + 1) * order.n):
            choice = TextChoice(index=index, text=prompt.text or "" if request.echo else "")
            if request.echo and scores and "logprobs" in order.jobs[0].params:
                choice.logprobs = self._scorers[index].of_prompt(prompt.token_ids, scores)
            if request.return_token_ids:
                choice.token_ids, choice.prompt_token_ids = [], prompt.token_ids
            if request.prompt_logprobs is not None and scores:
                choice.prompt_logprobs = prompt_logprobs(scores, self._texts)
            yield choice


def _choice(index: int, piece: Piece) -> TextChoice:
    return TextChoice(
        index=index,
        text=piece.text,
        finish_reason=piece.finish_reason,
        stop_reason=piece.stop_reason,
    )


def _says(choice: TextChoice) -> bool:
    """Returns whether a client learns anything from the choice."""
    return bool(
        choice.text or choice.finish_reason or choice.logprobs or choice.token_ids is not UNSET
    )


def _joined(parts: list[TextChoice]) -> TextChoice:
    """The whole choice of its parts."""
    first, last = parts[0], parts[-1]
    whole = TextChoice(
        index=first.index,
        text="".join(part.text for part in parts),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        prompt_token_ids=first.prompt_token_ids,
        prompt_logprobs=first.prompt_logprobs,
    )
    if any(part.logprobs for part in parts):
        whole.logprobs = TextLogprobs()
        for part in parts:
            if part.logprobs:
                whole.logprobs.extend(part.logprobs)
    if first.token_ids is not UNSET:
        whole.token_ids = [i for part in parts if part.token_ids for i in part.token_ids]
    return whole
