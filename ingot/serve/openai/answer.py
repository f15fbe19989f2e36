"""`Answer`: what answers of both kinds have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from ingot.serve.engine import Progress
from ingot.serve.openai.answers import AnswerHead, Counts
from ingot.serve.openai.events import AnswerEvents
from ingot.serve.openai.order import Order
from ingot.serve.openai.token_texts import TokenTexts


class Answer(ABC):
    """Makes the answer to an order of what its jobs give.

    A stream and a whole answer are made of the same parts, so that their texts are the same.
    """

    def __init__(self, order: Order, head: AnswerHead) -> None:
        request = order.request
        self._order = order
        self._head = head
        self.counts = Counts(order.num_prompt_tokens)
        self._events = AnswerEvents(head, self.counts, request.stream_options)
        self._texts = TokenTexts(order.tokenizer, as_ids=bool(request.return_tokens_as_token_ids))

    @abstractmethod
    def chunks(self, number: int, progress: Progress) -> bytes:
        """Events of a step's progress for job `number`; none where a client would learn nothing."""

    def last(self) -> bytes:
        """The events that end a stream."""
        return self._events.last()

    @abstractmethod
    def whole(self, steps: Iterable[tuple[int, Progress]]) -> bytes:
        """The answer that is not streamed, of all that the jobs have given."""
