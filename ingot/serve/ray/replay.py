"""A request that is computed anew on another replica goes on where its reader is."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from ingot.errors import EngineDeadError
from ingot.serve.engine import Job, Piece, Progress


def seeded(job: Job) -> Job:
    """The job with a seed, so that another replica draws the same tokens."""
    if job.params.get("temperature", 1.0) == 0 or job.params.get("seed") is not None:
        return job
    seed = int.from_bytes(job.id.encode()[-8:], "little") & (2**63 - 1)
    return replace(job, params={**job.params, "seed": seed})


@dataclass(slots=True)
class _Told:
    """Tokens of a completion that a reader has, and those that were computed again."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finished: bool = False
    num_tokens: int = 0
    num_chars: int = 0


class Replay:
    """Drops what a reader has been told already.

    The same request draws the same tokens on every replica of a model, so what is computed again
    is what was told. Where it is not, going on would make nonsense: EngineDeadError.
    """

    def __init__(self) -> None:
        self.finished = False
        self._told: dict[int, _Told] = {}
        self._begun = False

    def again(self) -> None:
        """The request begins anew."""
        for told in self._told.values():
            told.num_tokens = told.num_chars = 0

    def new(self, progress: Progress) -> Progress | None:
        """Progress that the reader has not seen; None if there is none. Raises EngineDeadError."""
        pieces = [piece for each in progress.pieces if (piece := self._piece(each)) is not None]
        if not pieces and not progress.finished and self._begun:
            return None
        first, self._begun = not self._begun, True
        self.finished = progress.finished
        return Progress(
            pieces,
            progress.finished,
            progress.num_cached_tokens if first else 0,
            progress.prompt_logprobs if first else None,
            progress.metrics,
        )

    def _piece(self, piece: Piece) -> Piece | None:
        told = self._told.setdefault(piece.index, _Told())
        known_ids = told.token_ids[told.num_tokens :][: len(piece.token_ids)]
        known_text = told.text[told.num_chars :][: len(piece.text)]
        same = piece.token_ids[: len(known_ids)] == known_ids and piece.text.startswith(known_text)
        if not same:
            raise EngineDeadError(
                "a replica was lost, and another one continued differently",
                hint="Send the request again, with a seed.",
            )
        ids, text = piece.token_ids[len(known_ids) :], piece.text[len(known_text) :]
        told.num_tokens += len(piece.token_ids)
        told.num_chars += len(piece.text)
        told.token_ids += ids
        told.text += text
        reason = None if told.finished else piece.finish_reason
        told.finished = told.finished or piece.finish_reason is not None
        if not ids and not text and reason is None:
            return None
        scores = piece.logprobs and piece.logprobs[len(known_ids) :]
        return Piece(piece.index, text, ids, scores, reason, reason and piece.stop_reason)
