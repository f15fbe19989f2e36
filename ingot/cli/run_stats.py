"""Measures a run, and how fast this host could have read what it had to read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingot.artifact.cost import StepShape
from ingot.artifact.step_cost import step_cost
from ingot.cli.numbers import format_bytes, format_seconds
from ingot.cli.other_work import ProcessorTimes
from ingot.cli.output import facts

if TYPE_CHECKING:
    from ingot.artifact.reader import Artifact
    from ingot.runtime.output import TextDelta


TOLD_SHARE = 0.25  # the kernel counts in ticks, of which a short run has few


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of `--stats`. A speed is None if too little was generated to measure it.

    `weight_bytes_per_token` is what decoding one token of one sequence must read, and
    `read_bytes_per_second` is how fast this host reads a buffer of that size. `kernel_share` is the
    part of the decoding that the kernels took. Of `num_draft_tokens` guessed tokens that steps
    computed, so many were accepted. `share_of_others` is the part of the processors'
    time that other processes had meanwhile; None where the system does not tell.
    """

    load_seconds: float
    ttft_seconds: float
    num_prompt_tokens: int
    num_tokens: int
    prefill_tokens_per_second: float | None
    decode_tokens_per_second: float | None
    kernel_share: float | None
    weight_bytes_per_token: int
    read_bytes_per_second: float
    decode_limit_tokens_per_second: float
    share_of_others: float | None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def text(self) -> str:
        """The figures for people."""
        return facts(self.rows(), indent="")

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each figure, for people."""
        decode, limit = self.decode_tokens_per_second, self.decode_limit_tokens_per_second
        share = f", {100 * decode / limit:.0f} % of the limit" if decode else ""
        kernels = (
            f"{100 * (self.kernel_share or 0.0):.0f} % of that time; drawing and text the rest"
        )
        weights = format_bytes(self.weight_bytes_per_token)
        bandwidth = format_bytes(int(self.read_bytes_per_second))
        others = self.share_of_others or 0.0
        drafts = f"{self.num_accepted_tokens} of {self.num_draft_tokens} guessed tokens were right"
        busy = f"other work had {100 * others:.0f} % of the processors' time: speeds are too low"
        return [
            ("load", format_seconds(self.load_seconds)),
            ("first token", format_seconds(self.ttft_seconds)),
            ("prefill", _speed(self.num_prompt_tokens, self.prefill_tokens_per_second)),
            ("decode", _speed(self.num_tokens, decode) + share),
            *([("kernels", kernels)] if self.kernel_share is not None else []),
            *([("drafts", drafts)] if self.num_draft_tokens else []),
            ("limit", f"{limit:.0f} tok/s: a token reads {weights} of weights, at {bandwidth}/s"),
            *([("busy host", busy)] if others >= TOLD_SHARE else []),
        ]


@dataclass
class RunStats:
    """Times of one completion; `watch` fills them in."""

    num_prompt_tokens: int
    num_tokens: int = 0
    first_seconds: float = 0.0
    total_seconds: float = 0.0
    kernel_seconds: float | None = None  # after the first token; None of an answer cut short
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    began: ProcessorTimes = field(default_factory=ProcessorTimes.now)
    ended: ProcessorTimes = field(default_factory=ProcessorTimes.now)

    def watch(
        self, deltas: Iterator[TextDelta], kernel_seconds: Callable[[], float]
    ) -> Iterator[TextDelta]:
        """Passes the pieces on and times them; `kernel_seconds` says what kernels took so far."""
        start, before = time.perf_counter(), 0.0
        try:
            for delta in deltas:
                self.total_seconds = time.perf_counter() - start
                if self.num_tokens == 0 and delta.token_ids:
                    self.first_seconds, before = self.total_seconds, kernel_seconds()
                self.num_tokens += len(delta.token_ids)
                yield delta
            self.kernel_seconds = kernel_seconds() - before
        finally:  # figures may be asked for much later
            self.ended = ProcessorTimes.now()

    def figures(self, artifact: Artifact, load_seconds: float) -> Figures:
        """All figures; measures this host's memory, so it takes a moment."""
        decode_seconds = self.total_seconds - self.first_seconds
        decode = _rate(self.num_tokens - 1, decode_seconds)
        kernels = self.kernel_seconds if decode else None
        nbytes = step_cost(artifact.plan, StepShape()).weight_bytes
        bandwidth = read_bandwidth(artifact, nbytes)
        return Figures(
            load_seconds=load_seconds,
            ttft_seconds=self.first_seconds,
            num_prompt_tokens=self.num_prompt_tokens,
            num_tokens=self.num_tokens,
            prefill_tokens_per_second=_rate(self.num_prompt_tokens, self.first_seconds),
            decode_tokens_per_second=decode,
            kernel_share=None if kernels is None else min(1.0, kernels / decode_seconds),
            weight_bytes_per_token=nbytes,
            read_bytes_per_second=bandwidth,
            decode_limit_tokens_per_second=bandwidth / max(nbytes, 1),
            share_of_others=self.ended.share_of_others(self.began),
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )


def read_bandwidth(artifact: Artifact, nbytes: int) -> float:
    """Bytes a second at which all threads of this host read a buffer of that size repeatedly."""
    from ingot.runtime.limits import LimitsMeter

    with LimitsMeter(artifact, nbytes) as meter:
        return meter.measure(5).read_bytes_per_second


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None


def _speed(count: int, rate: float | None) -> str:
    return f"{count} tokens" + ("" if rate is None else f" at {rate:.0f} tok/s")
