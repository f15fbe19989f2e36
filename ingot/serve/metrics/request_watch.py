"""`RequestWatch`: follows a request, and counts what it took to its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ingot.errors import IngotError
from ingot.runtime.metrics import RequestMetrics
from ingot.serve.asked import Asked
from ingot.serve.engine import Progress
from ingot.serve.metrics.board import Board
from ingot.serve.refusal import Refusal


class ModelBoard:
    """The metrics of a model that requests change."""

    def __init__(self, board: Board, model: str) -> None:
        histogram, number = board.histogram, board.number
        self._board, self._model = board, model
        self.first_token = histogram("time_to_first_token_seconds", model)
        self.between_tokens = histogram("inter_token_latency_seconds", model)
        self.per_token = histogram("request_time_per_output_token_seconds", model)
        self.total = histogram("e2e_request_latency_seconds", model)
        self.queue = histogram("request_queue_time_seconds", model)
        self.inference = histogram("request_inference_time_seconds", model)
        self.prefill = histogram("request_prefill_time_seconds", model)
        self.decode = histogram("request_decode_time_seconds", model)
        self.request_prompt_tokens = histogram("request_prompt_tokens", model)
        self.request_generation_tokens = histogram("request_generation_tokens", model)
        self.longest = histogram("request_max_num_generation_tokens", model)
        self.params_n = histogram("request_params_n", model)
        self.params_max_tokens = histogram("request_params_max_tokens", model)
        self.prompt_tokens = number("prompt_tokens", model)
        self.generation_tokens = number("generation_tokens", model)
        self.cancelled = number("requests_cancelled", model)
        for reason in ("stop", "length", "abort", "error"):
            number("request_success", model, reason)

    def seated(self, task: str) -> None:
        """Counts a request that has its seats."""
        self._board.number("requests_of_task", self._model, task).add()

    def ended(self, reason: str) -> None:
        """Counts the end of a request."""
        self._board.number("request_success", self._model, reason).add()

    def rejected(self, code: str) -> None:
        """Counts a request that was refused."""
        self._board.number("requests_rejected", self._model, code).add()


class RequestWatch:
    """Follows a request from its seat to its end. It may have several jobs.

    `began` is when the request came, and all times are those of `clock`. Only times of one process
    are compared: how long a job was computed is what its engine says.
    """

    def __init__(self, board: ModelBoard, clock: Callable[[], float], began: float) -> None:
        self._board = board
        self._clock = clock
        self._began = began
        self._waited = 0.0
        self._first_token: float | None = None
        self._last: dict[int, float] = {}  # when a job had its last token
        self._lengths: dict[tuple[int, int], int] = {}  # of the completions of the jobs
        self._reason: str | None = None
        self._end: str | None = None
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._prompts: Sequence[str | None] = ()
        self._answers: dict[tuple[int, int], list[str]] | None = None

    def keep_texts(self, asked: Asked) -> None:
        """Keeps the prompts and the answers for `summary`."""
        self._prompts = asked.prompts
        self._answers = {}

    @contextmanager
    def until_end(self) -> Iterator[None]:
        """Counts how the block ends: the request is answered, fails, or is cancelled."""
        try:
            yield
        except Exception as error:
            self.fail(_code(error))
            raise
        except BaseException:  # it is cancelled: its client has left
            self.cancel()
            raise
        self.finish()

    def seated(self, waited: float, asked: Asked) -> None:
        """Says that the request has its seats, after so many seconds of waiting."""
        board = self._board
        board.seated(asked.task)
        self._waited = waited
        self._num_prompt_tokens = asked.num_prompt_tokens
        board.prompt_tokens.add(asked.num_prompt_tokens)
        board.request_prompt_tokens.add(asked.num_prompt_tokens)
        board.params_n.add(asked.num_sequences)
        if asked.max_tokens is not None:
            board.params_max_tokens.add(asked.max_tokens)

    def see(self, progress: Progress, job: int = 0) -> None:
        """Counts what a step did for a job of the request."""
        most = total = 0
        for piece in progress.pieces:
            count = len(piece.token_ids)
            total += count
            most = count if count > most else most
            place = (job, piece.index)
            self._lengths[place] = self._lengths.get(place, 0) + count
            self._reason = piece.finish_reason or self._reason
            if self._answers is not None:
                self._answers.setdefault(place, []).append(piece.text)
        if total:
            if progress.metrics is not None and job not in self._last:
                self._time_whole(progress.metrics, most)
            else:
                self._time(job, most)
            self._board.generation_tokens.value += total
        self._num_cached_tokens += progress.num_cached_tokens
        if progress.metrics is not None:
            self._finish_job(progress.metrics)

    def finish(self) -> None:
        """Counts a request that was answered."""
        self._count_end(self._reason or "stop")

    def cancel(self) -> None:
        """Counts a request whose client has left."""
        self._count_end("abort")
        self._board.cancelled.add()

    def fail(self, code: str) -> None:
        """Counts a request that ended with an error, by its code."""
        self._count_end("error")
        self._board.rejected(code)

    def summary(self) -> dict[str, Any]:
        """Fields of the request's log line."""
        first = self._first_token
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "cached_tokens": self._num_cached_tokens or None,
            "tokens": sum(self._lengths.values()),
            "first_token_ms": None if first is None else round(1e3 * (first - self._began), 1),
            "finish": self._end,
            **self._texts(),
        }

    def _texts(self) -> dict[str, Any]:
        """The prompts and answers if they are kept, as JSON where there are several."""
        if self._answers is None:
            return {}
        answers = ["".join(parts) for _, parts in sorted(self._answers.items())]
        return {"prompt": _one(self._prompts), "answer": _one(answers)}

    def _time(self, job: int, most: int) -> None:
        """Notes when tokens came; of the completions of the job, one got `most` of them."""
        now, board = self._clock(), self._board
        if self._first_token is None:
            self._first_token = now
            board.first_token.add(now - self._began)
        last = self._last.get(job)
        if last is not None:
            board.between_tokens.add((now - last) / most, most)
        self._last[job] = now

    def _time_whole(self, metrics: RequestMetrics, most: int) -> None:
        """Notes when tokens came of a job that is told of at its end alone."""
        decode = (metrics.total_seconds or 0.0) - (metrics.ttft_seconds or 0.0)
        if self._first_token is None:
            self._first_token = self._clock() - decode
            self._board.first_token.add(self._first_token - self._began)
        if metrics.tpot_seconds is not None and most > 1:
            self._board.between_tokens.add(metrics.tpot_seconds, most - 1)

    def _finish_job(self, metrics: RequestMetrics) -> None:
        board, total = self._board, metrics.total_seconds
        if total is None:
            return
        queue = metrics.queue_seconds or 0.0
        board.queue.add(self._waited + queue)
        board.inference.add(total - queue)
        if metrics.ttft_seconds is not None:
            board.prefill.add(metrics.ttft_seconds - queue)
            board.decode.add(total - metrics.ttft_seconds)
        if metrics.tpot_seconds is not None:
            board.per_token.add(metrics.tpot_seconds)

    def _count_end(self, reason: str) -> None:
        self._end = reason
        board = self._board
        board.ended(reason)
        board.total.add(self._clock() - self._began)
        board.request_generation_tokens.add(sum(self._lengths.values()))
        board.longest.add(max(self._lengths.values(), default=0))


def _code(error: Exception) -> str:
    """By what name an error is counted: few enough for a label."""
    if isinstance(error, Refusal):
        return error.code
    return type(error).__name__ if isinstance(error, IngotError) else "internal"


def _one(texts: Sequence[str | None]) -> str | None:
    return texts[0] if len(texts) == 1 else msgspec.json.encode(texts).decode()
