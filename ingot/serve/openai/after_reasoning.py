"""Which tokens of a chat's answer come after its reasoning, when clients do not want that."""

from __future__ import annotations

from msgspec.structs import replace

from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.chat import AnswerDelta, AnswerReader
from ingot.serve.engine import Piece, Scored
from ingot.serve.openai.order import Order
from ingot.serve.openai.token_texts import TokenTexts


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
        """Whether the last token only stops the completion, and is no part of its text."""
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
