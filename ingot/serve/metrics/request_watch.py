"""`RequestWatch`: follows a request, and counts what it took to its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.runtime.metrics import RequestMetrics
from ingot.serve.asked import Asked
from ingot.serve.engine import Progress
from ingot.serve.metrics.board import Board


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

    def ended(self, reason: str) -> None:
        """Counts the end of a request."""
        self._board.number("request_success", self._model, reason).add()

    def rejected(self, code: str) -> None:
        """Counts a request that was refused."""
        self._board.number("requests_rejected", self._model, code).add()


class RequestWatch:
    """Follows a request from its seat to its end.

    `began` is when the request came, and all times are those of `clock`. Only times of one process
    are compared: how long it computed is what the engine says.
    """

    def __init__(self, board: ModelBoard, clock: Callable[[], float], began: float) -> None:
        self._board = board
        self._clock = clock
        self._began = began
        self._last = began
        self._tokens: dict[int, int] = {}
        self._waited = 0.0
        self._end: str | None = None
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_tokens = 0
        self.first_token_seconds: float | None = None
        self.reason: str | None = None

    def seated(self, waited: float, asked: Asked) -> None:
        """Says that the request has its seats, after so many seconds of waiting."""
        board = self._board
        self._waited = waited
        self.num_prompt_tokens = asked.num_prompt_tokens
        board.prompt_tokens.add(asked.num_prompt_tokens)
        board.request_prompt_tokens.add(asked.num_prompt_tokens)
        board.params_n.add(asked.num_sequences)
        if asked.max_tokens is not None:
            board.params_max_tokens.add(asked.max_tokens)

    def summary(self) -> dict[str, Any]:
        """What the log says of the request."""
        first = self.first_token_seconds
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens or None,
            "tokens": self.num_tokens,
            "first_token_ms": None if first is None else round(1e3 * first, 1),
            "finish": self._end,
        }

    def see(self, progress: Progress) -> None:
        """Counts what a step did for the request."""
        most = total = 0
        for piece in progress.pieces:
            count = len(piece.token_ids)
            total += count
            most = count if count > most else most
            self._tokens[piece.index] = self._tokens.get(piece.index, 0) + count
            if piece.finish_reason:
                self.reason = piece.finish_reason
        if total:
            now = self._clock()
            if self.first_token_seconds is None:
                self.first_token_seconds = now - self._began
                self._board.first_token.add(self.first_token_seconds)
            else:
                self._board.between_tokens.add((now - self._last) / most, most)
            self._last = now
            self.num_tokens += total
            self._board.generation_tokens.value += total
        if progress.num_cached_tokens:
            self.num_cached_tokens = progress.num_cached_tokens
        if progress.finished:
            self._finish(progress.metrics)

    def cancel(self) -> None:
        """Counts a request whose client has left, unless it was done."""
        if self._ended("abort"):
            self._board.cancelled.add()

    def fail(self, code: str) -> None:
        """Counts a request that ended with an error, unless it was done."""
        if self._ended("error"):
            self._board.rejected(code)

    def _finish(self, metrics: RequestMetrics | None) -> None:
        board = self._board
        self._ended(self.reason or "stop")
        if self.num_tokens > 1 and self.first_token_seconds is not None:
            decode = self._last - self._began - self.first_token_seconds
            board.per_token.add(decode / max(max(self._tokens.values()) - 1, 1))
        if metrics is None or metrics.total_seconds is None:
            return
        queue = metrics.queue_seconds or 0.0
        board.queue.add(self._waited + queue)
        board.inference.add(metrics.total_seconds - queue)
        if metrics.ttft_seconds is not None:
            board.prefill.add(metrics.ttft_seconds - queue)
            board.decode.add(metrics.total_seconds - metrics.ttft_seconds)

    def _ended(self, reason: str) -> bool:
        """Counts the end; False if the request had ended before."""
        if self._end is not None:
            return False
        self._end = reason
        board = self._board
        board.ended(reason)
        board.total.add(self._clock() - self._began)
        board.request_generation_tokens.add(self.num_tokens)
        board.longest.add(max(self._tokens.values(), default=0))
        return True
