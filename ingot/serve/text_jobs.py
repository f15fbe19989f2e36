"""`TextJobs`: runs jobs that want rows of whole texts, each in a thread of its own.

The threads wait for their turn most of the time: a step takes the texts of whoever has waited
longest, so that jobs which come together share steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from ingot.errors import IngotError, InternalError, describe
from ingot.runtime.embedding import RunsTexts
from ingot.runtime.encoder import EncodedText
from ingot.runtime.metrics import EPOCH, RequestMetrics
from ingot.serve.engine import Job, Progress

AT_ONCE = 64  # jobs whose texts wait in the encoder; others wait before it
Tell = Callable[[int, Progress | IngotError], None]

_log = logging.getLogger(__name__)


class TextJobs:
    """Runs jobs of texts, and tells what becomes of each, by its number. For several threads."""

    def __init__(self, texts: RunsTexts, tell: Tell) -> None:
        self._texts, self._tell = texts, tell
        self._threads = ThreadPoolExecutor(AT_ONCE, "ingot-texts")
        self._asked: set[int] = set()

    def add(self, number: int, job: Job) -> None:
        """Runs a job under a number that was never used."""
        self._asked.add(number)
        self._threads.submit(self._run, number, job, perf_counter())

    def drop(self, number: int) -> None:
        """Aborts a job that has not ended; what has begun of it runs to its end."""
        self._asked.discard(number)

    def _run(self, number: int, job: Job, arrived: float) -> None:
        if number not in self._asked:
            return
        try:
            told: Progress | IngotError = self._progress(number, job, arrived)
        except IngotError as error:
            told = error
        except Exception as error:
            _log.exception("texts cannot be read")
            told = InternalError(describe(error))
        if number in self._asked:
            self._asked.discard(number)
            self._tell(number, told)

    def _progress(self, number: int, job: Job, arrived: float) -> Progress:
        started = perf_counter()
        none = [0] * len(job.texts)
        parts = zip(job.texts, job.seconds or none, job.unpooled or none, strict=True)
        texts = [EncodedText(*each) for each in parts]
        run = self._texts.run_tokens if job.of_tokens else self._texts.run
        rows = run(texts, lambda: number not in self._asked)
        metrics = _metrics(job, arrived, started, perf_counter())
        return Progress(
            [], finished=True, metrics=metrics, rows=b"".join(each.tobytes() for each in rows)
        )


def _metrics(job: Job, arrived: float, started: float, ended: float) -> RequestMetrics:
    return RequestMetrics(
        num_prompt_tokens=sum(map(len, job.texts)),
        num_cached_tokens=0,
        num_generated_tokens=0,
        num_preemptions=0,
        queue_seconds=started - arrived,
        ttft_seconds=None,
        tpot_seconds=None,
        total_seconds=ended - arrived,
        arrival_time=arrived - EPOCH,
        first_scheduled_time=started - EPOCH,
        first_token_time=None,
        last_token_time=None,
        finished_time=ended - EPOCH,
    )
