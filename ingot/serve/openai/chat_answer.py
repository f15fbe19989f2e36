"""Answers to `POST /v1/chat/completions`: whole, or chunk by chunk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import asdict, replace

from ingot.runtime.answers import AnswerDelta, AnswerReader
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import Piece, Progress, Scored
from ingot.serve.openai.answer import Answer
from ingot.serve.openai.answers import AnswerHead, ChatCompletion, ChatLogprobs
from ingot.serve.openai.deltas import Delta, DeltaChoice, delta_of, whole_choice
from ingot.serve.openai.events import encode
from ingot.serve.openai.logprobs import chat_logprobs, prompt_logprobs
from ingot.serve.openai.order import Order
from ingot.serve.openai.params import num_logprobs
from ingot.serve.openai.token_texts import TokenTexts

_TEXT_ALONE = b'},"logprobs":null,"finish_reason":null}'


class ChatAnswer(Answer):
    """Answer to a chat, whose order has one job."""

    def __init__(self, order: Order, head: AnswerHead) -> None:
        super().__init__(order, head)
        request = order.request
        self._num_top = num_logprobs(request)
        self._begun = False
        self._hides_reasoning = getattr(request, "include_reasoning", None) is False
        self._readers = [reader for _ in range(order.n) if (reader := order.reader())]
        self._after = self._after_reasoning() if self._hides_reasoning else []
        # Nothing but text: what most requests want, at the least cost for each token.
        self._plain = not any((request.return_token_ids, order.scores, self._readers))

    def chunks(self, number: int, progress: Progress) -> bytes:
        self.counts.see(progress)
        events = [] if self._begun else [self._events.chunk(each) for each in self._beginnings()]
        self._begun = True
        for piece in progress.pieces:
            if self._plain:
                events.append(self._plain_event(piece))
            else:
                events += [self._events.chunk(each) for each in self._deltas(piece)]
        return b"".join(events)

    def whole(self, steps: Iterable[tuple[int, Progress]]) -> bytes:
        parts = defaultdict[int, list[DeltaChoice]](list)
        for choice in self._beginnings():
            parts[choice.index].append(choice)
        further: dict[str, Any] = {}
        for _, progress in steps:
            self.counts.see(progress)
            if progress.prompt_logprobs and self._order.request.prompt_logprobs is not None:
                further["prompt_logprobs"] = prompt_logprobs(progress.prompt_logprobs, self._texts)
            for piece in progress.pieces:
                parts[piece.index] += self._deltas(piece)
        if self._order.request.return_token_ids:
            further["prompt_token_ids"] = self._order.prompts[0].token_ids
        choices = [whole_choice(index, parts[index]) for index in sorted(parts)]
        head, usage = asdict(self._head), self.counts.usage()
        return encode(ChatCompletion(**head, choices=choices, usage=usage, **further))

    def _after_reasoning(self) -> list[AfterReasoning]:
        """Finds, for each choice, the tokens that may be told; none where all may."""
        order, tokenizer = self._order, self._order.tokenizer
        if tokenizer is None or order.style is None or not order.style.thinks:
            return []
        return [AfterReasoning(order, tokenizer, self._texts) for _ in range(order.n)]

    def _beginnings(self) -> Iterator[DeltaChoice]:
        for index in range(self._order.n):
            yield DeltaChoice(index=index, delta=Delta(role="assistant", content=""))
            if text := self._order.echoed:
                yield DeltaChoice(index=index, delta=Delta(content=text))

    def _plain_event(self, piece: Piece) -> bytes:
        if piece.finish_reason is not None:
            return b"".join([self._events.chunk(each) for each in self._deltas(piece)])
        if not piece.text:  # held back: it may be half a character
            return b""
        text = encode(piece.text)
        choice = b'{"index":%d,"delta":{"content":%b%b' % (piece.index, text, _TEXT_ALONE)
        return self._events.chunk_of(choice)

    def _deltas(self, piece: Piece) -> Iterator[DeltaChoice]:
        """Deltas of a piece: text, reasoning, calls, and how the choice ended."""
        reader = self._readers[piece.index] if self._readers else None
        choices = [DeltaChoice(index=piece.index, delta=d) for d in self._read(piece, reader)]
        yield from self._told(piece, choices)
        if piece.finish_reason is not None:
            called = reader is not None and reader.called and piece.finish_reason == "stop"
            yield DeltaChoice(
                index=piece.index,
                delta=Delta(),
                finish_reason="tool_calls" if called else piece.finish_reason,
                stop_reason=piece.stop_reason,
            )

    def _read(self, piece: Piece, reader: AnswerReader | None) -> list[Delta]:
        """The text of a piece as the parts of a message that it is."""
        if reader is None:
            return [Delta(content=piece.text)] if piece.text else []
        parts = reader.feed(piece.text) if piece.text else []
        if piece.finish_reason is not None:
            parts += reader.finish()
        if self._hides_reasoning:
            parts = [part for part in parts if not part.reasoning]
        return [delta_of(part) for part in parts]

    def _told(self, piece: Piece, choices: list[DeltaChoice]) -> list[DeltaChoice]:
        """Attaches ids and log-probabilities of the tokens to the first chunk's choice."""
        tells_ids = bool(self._order.request.return_token_ids)
        scores = self._scores(piece)
        if not tells_ids and scores is None:
            return choices
        choices = choices or [DeltaChoice(index=piece.index, delta=Delta(content=""))]
        choices[0].logprobs = scores
        if tells_ids:
            choices[0].token_ids = piece.token_ids
        return choices

    def _scores(self, piece: Piece) -> ChatLogprobs | None:
        """Log-probabilities that a piece adds; None where there are none yet."""
        if piece.logprobs is None or self._num_top is None:
            return None
        if not self._after:
            return chat_logprobs(piece, self._texts, self._num_top)
        scores = chat_logprobs(self._after[piece.index].told(piece), self._texts, self._num_top)
        return scores if scores.content or piece.finish_reason is not None else None


class AfterReasoning:
    """Reads one completion token by token, so it finds the same however the pieces are cut.

    A token is told if its text reaches into what follows the reasoning, its end tag and the white
    space there. Until that comes, the tokens wait: the space may be the answer's own.
    """

    def __init__(self, order: Order, tokenizer: Tokenizer, texts: TokenTexts) -> None:
        params, prompt = order.jobs[0].params, order.prompts[0]
        assert order.style is not None, "only what reads reasoning hides it"
        self._reader: AnswerReader | None = order.style.reader(prompt.text or "")
        self._detokenizer = tokenizer.detokenizer(
            params.get("skip_special_tokens", True),
            params.get("spaces_between_special_tokens", True),
            prompt.token_ids,
        )
        self._tokenizer, self._texts = tokenizer, texts
        self._shows_stop = bool(params.get("include_stop_str_in_output"))
        self._waiting: list[tuple[int, list[Scored]]] = []
        self._num_chars = 0

    def told(self, piece: Piece) -> Piece:
        """The piece with the log-probabilities, and the tokens they are of, that may be told."""
        found: list[tuple[int, list[Scored]]] = []
        scores = piece.logprobs or []
        for number, pair in enumerate(zip(piece.token_ids, scores, strict=True), start=1):
            if self._reader is None:
                found.append(pair)
                continue
            self._waiting.append(pair)
            last = number == len(scores)
            text = "" if last and self._ends(piece) else self._detokenizer.push(pair[0])
            found += self._begun(text, self._reader.feed(text))
        if piece.finish_reason is not None and self._reader is not None:
            text = self._detokenizer.finish(cut=piece.finish_reason == "length")
            found += self._begun(text, self._reader.feed(text) + self._reader.finish())
        return replace(
            piece, token_ids=[token for token, _ in found], logprobs=[each for _, each in found]
        )

    def _ends(self, piece: Piece) -> bool:
        """Returns whether the last token only stops the completion, and is no part of its text."""
        if piece.finish_reason != "stop" or self._shows_stop or isinstance(piece.stop_reason, str):
            return False
        return piece.stop_reason is not None or not self._tokenizer.decode(piece.token_ids[-1:])

    def _begun(self, text: str, deltas: list[AnswerDelta]) -> list[tuple[int, list[Scored]]]:
        """The waiting tokens that the beginning of the content consists of, once it is here."""
        self._num_chars += len(text)
        content = "".join(delta.content for delta in deltas)
        if not content:
            return []
        self._reader = None
        first, num_bytes = len(self._waiting), len(content.encode())
        if len(content) == self._num_chars:  # nothing came before it
            first = num_bytes = 0
        while first and num_bytes > 0:
            first -= 1
            num_bytes -= len(self._texts.data(self._waiting[first][0]))
        found, self._waiting = self._waiting[first:], []
        return found
