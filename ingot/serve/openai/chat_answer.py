"""Answers to `POST /v1/chat/completions`: whole, or chunk by chunk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from ingot.serve.engine import Piece, Progress
from ingot.serve.openai.answers import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    Counts,
    Head,
    Message,
)
from ingot.serve.openai.events import Events, encode
from ingot.serve.openai.logprobs import chat_logprobs, prompt_logprobs
from ingot.serve.openai.order import Order
from ingot.serve.openai.params import num_logprobs
from ingot.serve.openai.token_texts import TokenTexts

_TEXT_ALONE = b'},"logprobs":null,"finish_reason":null}'


class Delta(Struct, kw_only=True, omit_defaults=True):
    """What a chunk adds to a message."""

    role: str | None = None
    content: str | None = None


class DeltaChoice(Struct, kw_only=True):
    """What a chunk adds to a choice."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatAnswer:
    """Makes the answer to an order of what its job gives.

    A stream and a whole answer are made of the same parts, so that their texts are the same.
    """

    def __init__(self, order: Order, head: Head) -> None:
        request = order.request
        self._order = order
        self._head = head
        self.counts = Counts(order.num_prompt_tokens)
        self._events = Events(head, self.counts, request.stream_options)
        self._texts = TokenTexts(order.tokenizer, as_ids=bool(request.return_tokens_as_token_ids))
        self._num_top = num_logprobs(request)
        self._begun = False
        # Nothing but text: what most requests want, at the least cost for each token.
        special = (request.return_token_ids, order.scores, order.hides_completion)
        self._plain = not any(special)

    def chunks(self, number: int, progress: Progress) -> bytes:
        """What a step did for the job, as events; none where a client would learn nothing."""
        self.counts.see(progress)
        events = [] if self._begun else [self._events.chunk(each) for each in self._beginnings()]
        self._begun = True
        for piece in progress.pieces:
            if self._plain:
                events.append(self._plain_event(piece))
            else:
                events += [self._events.chunk(each) for each in self._deltas(piece)]
        return b"".join(events)

    def last(self) -> bytes:
        """The events that end a stream."""
        return self._events.last()

    def whole(self, steps: Iterable[tuple[int, Progress]]) -> bytes:
        """The answer that is not streamed, of all that the job has given."""
        parts = defaultdict[int, list[DeltaChoice]](list)
        further = {}
        for _, progress in steps:
            self.counts.see(progress)
            if progress.prompt_logprobs and self._order.request.prompt_logprobs is not None:
                further["prompt_logprobs"] = prompt_logprobs(progress.prompt_logprobs, self._texts)
            for piece in progress.pieces:
                parts[piece.index] += self._deltas(piece)
        if self._order.request.return_token_ids:
            further["prompt_token_ids"] = self._order.prompts[0].token_ids
        choices = [_joined(index, parts[index]) for index in sorted(parts)]
        head, usage = asdict(self._head), self.counts.usage()
        return encode(ChatCompletion(**head, choices=choices, usage=usage, **further))

    def _beginnings(self) -> Iterator[DeltaChoice]:
        delta = Delta(role="assistant", content="")
        return (DeltaChoice(index=index, delta=delta) for index in range(self._order.n))

    def _plain_event(self, piece: Piece) -> bytes:
        if piece.finish_reason is not None:
            return b"".join([self._events.chunk(each) for each in self._deltas(piece)])
        if not piece.text:  # held back: it may be half a character
            return b""
        text = encode(piece.text)
        choice = b'{"index":%d,"delta":{"content":%b%b' % (piece.index, text, _TEXT_ALONE)
        return self._events.chunk_of(choice)

    def _deltas(self, piece: Piece) -> Iterator[DeltaChoice]:
        """What a piece adds to its choice: its text, and how the choice ended."""
        hides = self._order.hides_completion
        if not hides and (piece.text or piece.logprobs or self._order.request.return_token_ids):
            yield self._text_delta(piece)
        if piece.finish_reason is not None:
            yield DeltaChoice(
                index=piece.index,
                delta=Delta(),
                finish_reason="length" if hides else piece.finish_reason,
                stop_reason=piece.stop_reason,
            )

    def _text_delta(self, piece: Piece) -> DeltaChoice:
        choice = DeltaChoice(index=piece.index, delta=Delta(content=piece.text))
        if piece.logprobs is not None and self._num_top is not None:
            choice.logprobs = chat_logprobs(piece, self._texts, self._num_top)
        if self._order.request.return_token_ids:
            choice.token_ids = piece.token_ids
        return choice


def _joined(index: int, parts: list[DeltaChoice]) -> ChatChoice:
    """The whole choice of its parts."""
    last = parts[-1]
    message = Message(content="".join(part.delta.content or "" for part in parts))
    whole = ChatChoice(index=index, message=message, finish_reason=last.finish_reason)
    whole.stop_reason = None if last.stop_reason is UNSET else last.stop_reason
    if any(part.logprobs for part in parts):
        whole.logprobs = ChatLogprobs()
        for part in parts:
            if part.logprobs:
                whole.logprobs.extend(part.logprobs)
    if any(part.token_ids is not UNSET for part in parts):
        whole.token_ids = [i for part in parts if part.token_ids for i in part.token_ids]
    return whole
