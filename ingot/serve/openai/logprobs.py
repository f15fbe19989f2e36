"""Log-probabilities in the formats of completions, of chats, and of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from ingot.serve.engine import Piece, Scored
from ingot.serve.openai.answers import (
    ChatLogprobs,
    PromptLogprobs,
    TextLogprobs,
    TokenLogprob,
    TopLogprob,
)
from ingot.serve.openai.token_texts import TokenTexts

# JSON has no infinity: what no token can be less likely than. Source: OpenAI's API.
LEAST = -9999.0


class TextScores:
    """Writes the log-probabilities of one completion, token after token."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._num_chars = 0  # characters that have begun

    def of_prompt(
        self, token_ids: Sequence[int], scores: Sequence[list[Scored] | None]
    ) -> TextLogprobs:
        """Log-probabilities of a prompt, which comes first; its first token has none."""
        return self._written(token_ids, scores)

    def of_piece(self, piece: Piece) -> TextLogprobs:
        """Log-probabilities of the tokens of a piece."""
        return self._written(piece.token_ids, piece.logprobs or [])

    def _written(
        self, token_ids: Sequence[int], scores: Sequence[list[Scored] | None]
    ) -> TextLogprobs:
        result = TextLogprobs()
        for token_id, scored in zip(token_ids, scores, strict=False):
            result.tokens.append(self._texts.text(token_id))
            result.text_offset.append(self._offset(self._texts.data(token_id)))
            result.token_logprobs.append(_own(token_id, scored) if scored else None)
            result.top_logprobs.append(
                {self._texts.text(each[0]): bounded(each[1]) for each in scored} if scored else None
            )
        return result

    def _offset(self, data: bytes) -> int:
        """The character in which a token begins; notes those that begin in it."""
        inside = bool(data) and _goes_on(data[0])
        begin = self._num_chars - inside
        self._num_chars += sum(not _goes_on(byte) for byte in data)
        return max(begin, 0)


def chat_logprobs(piece: Piece, texts: TokenTexts, num_top: int) -> ChatLogprobs:
    """Log-probabilities of a piece's tokens, each with the `num_top` likeliest at its place."""
    return ChatLogprobs(
        [
            TokenLogprob(
                texts.text(token_id),
                _own(token_id, scored),
                list(texts.data(token_id)),
                [_top(each, texts) for each in _likeliest(scored, num_top)],
            )
            for token_id, scored in zip(piece.token_ids, piece.logprobs or [], strict=False)
        ]
    )


def prompt_logprobs(scores: Sequence[list[Scored] | None], texts: TokenTexts) -> PromptLogprobs:
    """Log-probabilities of a prompt under vLLM's names, by token id."""
    return [
        None
        if scored is None
        else {
            str(token_id): {"logprob": bounded(logprob), "rank": rank,
                            "decoded_token": texts.text(token_id)}
            for token_id, logprob, rank, _ in scored
        }
        for scored in scores
    ]  # fmt: skip


def bounded(logprob: float) -> float:
    """A log-probability that JSON can say."""
    return max(logprob, LEAST)


def _own(token_id: int, scored: Sequence[Scored]) -> float:
    return bounded(next((each[1] for each in scored if each[0] == token_id), LEAST))


def _likeliest(scored: Sequence[Scored], count: int) -> list[Scored]:
    return sorted((each for each in scored if each[2] <= count), key=itemgetter(2))[:count]


def _top(scored: Scored, texts: TokenTexts) -> TopLogprob:
    return TopLogprob(texts.text(scored[0]), bounded(scored[1]), list(texts.data(scored[0])))


def _goes_on(byte: int) -> bool:
    """Returns whether a byte continues a UTF-8 character."""
    return byte & 0xC0 == 0x80
