"""The engine: sequences in, one step at a time, tokens out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from time import perf_counter

import numpy as np

from ingot.artifact.programs import PROGRAMS, STEP
from ingot.errors import IngotError, InternalError, UsageError
from ingot.runtime.arrays import Float32
from ingot.runtime.batch import Batch, BatchBuilder
from ingot.runtime.config import EngineConfig, engine_config
from ingot.runtime.drawing import Drawing, Flights, Recipients
from ingot.runtime.executor import Executor
from ingot.runtime.forced import ForcedSteps, Take, writer
from ingot.runtime.logits_cache import LogitsCache
from ingot.runtime.metrics import CacheCounters, EngineCounters, Tally
from ingot.runtime.output import FinishReason
from ingot.runtime.page_table import PageTable
from ingot.runtime.params import SamplingParams
from ingot.runtime.request import Request, RequestChecks, check_priority, sequence_of
from ingot.runtime.residence import Residence
from ingot.runtime.scheduler import AGING, Scheduler
from ingot.runtime.sequence import Sequence
from ingot.runtime.sessions.prefixes import Prefixes
from ingot.runtime.sessions.prompt_cache import PromptCache
from ingot.runtime.sessions.work import SessionWork
from ingot.runtime.speculation import Speculation, check_speculation

_log = logging.getLogger(__name__)

Receive = Callable[[list[Sequence]], None]
OpenPrompts = Callable[[str, int | None], PromptCache]


class Engine:
    """Advances all sequences by steps. For one thread only.

    With overlap, the engine delivers the tokens of the previous step and prepares the next one
    while the executor runs the current one. It expects every sequence to go on. Where one does
    not, the prepared step is dropped. Nothing has to be undone: the pages that it took and the
    sequences that it admitted or preempted serve any other step as well.

    A device is given the next step before the current one is done, unless the host has to see the
    tokens first. That step cannot be dropped: a sequence that has ended meanwhile takes nothing
    from it, and what others write to its pages comes later in the device's queue.

    With speculation, a step also computes guesses of the tokens to come, where that pays. Nothing
    is prepared beside a step whose tokens the next one has to follow.

    Args:
        max_model_len: the most tokens a sequence can have, prompt included.
        eos_token_ids: tokens that end a sequence unless it ignores them.
        seed: draws of requests without a seed of their own depend on it.
        config: the switches; `config` can be replaced between steps.
        open_prompts: opens the prompt cache in a folder, of so many bytes.
        receive: called with the sequences that got a token or ended together; it may end any of
            them with `finish`.
        known_tokens: how many tokens the model reads; 0: as many as it gives logits for.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        max_model_len: int,
        eos_token_ids: Iterable[int] = (),
        seed: int = 0,
        config: EngineConfig | None = None,
        receive: Receive = lambda sequences: None,
        open_prompts: OpenPrompts | None = None,
        known_tokens: int = 0,
    ) -> None:
        limits, most_tokens = executor.limits, executor.limits.max_num_batched_tokens
        self.eos_token_ids, self.seed = tuple(eos_token_ids), seed
        self._receive = receive
        self.pages = PageTable(
            executor.num_pages, limits.page_size, window=executor.window, step_tokens=most_tokens
        )
        self._residence = Residence(
            self.pages, executor.num_slots, has_pages="page_table" in executor.inputs[0]
        )
        self._checks = RequestChecks(
            vocab_size=known_tokens or executor.vocab_size,
            max_model_len=max_model_len,
            pages=self.pages,
            num_logits=executor.vocab_size,
        )
        self._executor = executor
        self._builders = [BatchBuilder(inputs, self._residence) for inputs in executor.inputs]
        self._other_builders: dict[str, BatchBuilder] = {}
        self._max_num_rows = min(limits.max_logit_rows, most_tokens)
        self.scheduler = Scheduler(
            self._residence,
            config=(config := engine_config(config)),
            max_num_seqs=min(limits.max_num_seqs, self._max_num_rows),
            max_num_tokens=most_tokens,
            max_num_rows=self._max_num_rows,
            drafter=self._drafts,
        )
        self._tally = Tally(int)
        self._logits_cache = LogitsCache(0)
        self._drawing = Drawing(self, executor, self._tally, self._logits_cache)
        self._prepared: Batch | None = None
        self._flights = Flights(self.scheduler, executor, self._drawing, self._tally)
        self.sessions = SessionWork(self, executor)
        self._open_prompts = open_prompts
        self._prefixes: Prefixes | None = None
        self._prompts_at: tuple[str | None, int | None] = (None, None)
        self._undelivered: list[Sequence] = []
        self._num_requests = self._num_sequences = 0
        self.config = config

    @property
    def config(self) -> EngineConfig:
        """The switches. Setting them takes effect with the next step, and changes no output."""
        return self._config

    @config.setter
    def config(self, config: EngineConfig) -> None:
        config = engine_config(config)
        check_speculation(config, self._executor, self._max_num_rows)
        self._prepared = None
        self._change_prompts(config)
        self.scheduler.configure(config)
        self._speculation = None if config.speculative is None else Speculation(config)
        if config.logits_cache_bytes != self._logits_cache.max_bytes:
            self._logits_cache.resize(config.logits_cache_bytes)
        self._overlaps = (
            self._executor.leaves_processors if config.overlap is None else config.overlap
        )
        self._config = config

    @property
    def has_unfinished(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting or self._flights)

    def check(self, token_ids: list[int], params: SamplingParams | None = None) -> None:
        """Raises RequestError for a prompt that can never be served."""
        self._checks.check(token_ids, params)

    def add(
        self, token_ids: list[int], params: SamplingParams, *, priority: int = 0, salt: bytes = b""
    ) -> Sequence:
        """Checks a request and starts it; see `start`. Raises RequestError or QueueFullError."""
        self.check(token_ids, params)
        return self.start(
            Request(
                token_ids=token_ids,
                params=params.for_model(self._executor.vocab_size),
                priority=check_priority(priority),
                salt=salt,
            )
        )

    def start(self, request: Request) -> Sequence:
        """Starts a request that was checked; returns the sequence of its first completion.

        The sequences of the others are its siblings. Raises QueueFullError.
        """
        token_ids, params = request.token_ids, request.params
        self.scheduler.check_room(params.n)
        number, first_id = self.next_numbers(params.n)
        if request.session is not None:
            first_id = request.session.sequence_id
        eos_token_ids = () if params.ignore_eos else self.eos_token_ids
        first = sequence_of(
            request,
            number,
            first_id,
            rank=number + AGING * request.priority,
            max_len=self._checks.max_len(token_ids, params),
            seed=self.seed,
            stop_ids=frozenset([*params.stop_token_ids, *eos_token_ids]),
            vocab_size=self._executor.vocab_size,
        )
        first.borders.update(map(self._residence.border, request.snapshot_at))
        self._prepared = None
        if self._prefixes is not None:
            self._prefixes.arrive(first)
        self._drawing.look_up(first)
        self.scheduler.add(first)
        return first

    def abort(self, sequence: Sequence) -> None:
        """Ends a sequence and the siblings that wait for it, unless they are finished."""
        for each in (*sequence.siblings, sequence):
            if not each.finished:
                self.finish(each, "abort")
        sequence.siblings.clear()

    def finish(
        self, sequence: Sequence, reason: FinishReason, stop_reason: str | int | None = None
    ) -> None:
        """Ends a sequence for a reason that only its owner can see, such as a stop string."""
        sequence.finish_reason = reason
        sequence.stop_reason = stop_reason
        self._tally["num_finished"] += reason != "abort"
        self._tally["num_aborted"] += reason == "abort"
        self._forget(sequence)

    def fail(self, sequence: Sequence, error: IngotError) -> None:
        """Ends a sequence with an error; the others go on."""
        sequence.error = error
        self._tally["num_failed"] += 1
        self._forget(sequence)
        if isinstance(error, InternalError):
            # What is not finite may be in the keys of tokens that others begin with.
            self._residence.forget_prefixes()

    def fail_all(self, error: IngotError) -> None:
        """Ends every sequence with an error, as after a step that failed halfway."""
        self._undelivered.clear()
        self._flights.abandon()
        self.scheduler.resting.forget_all()
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            for each in (*sequence.siblings, sequence):
                if not each.finished:
                    self.fail(each, error)

    def step(self) -> list[Sequence]:
        """Runs one step; returns the sequences that got a token or an error in it, but for those
        that were delivered in the middle of a draft and got no more.

        After an error nothing is certain but the tokens of the sequences: see `fail_all`.
        """
        began = perf_counter()
        drawn = self._drawing.draw_known()
        if drawn:
            self._prepared = None
            self._undelivered += drawn
        if not self._overlaps:
            self.deliver()  # a stop string may end what would run in this step
        if not self._flights and self._prefixes is not None:
            self._prefixes.write_one(now=False)
        if not self._flights:
            batch, self._prepared = self._prepared or self._prepare(Recipients()), None
            if batch is not None:
                recipients = self._drawing.recipients(batch.chunks)
                self._flights.submit(batch, recipients, beside=self._overlaps)
        if self._flights:
            drawn += self._land()
            if self._speculation is not None:
                self._speculation.landed(self._flights.landed, perf_counter() - began)
        elif self.has_unfinished and not drawn:
            raise InternalError("no sequence can run")
        if not (self._overlaps and self.has_unfinished):
            self.deliver()
        self._tally["step_seconds"] += perf_counter() - began
        return drawn

    def deliver(self, changed: Iterable[Sequence] = ()) -> None:
        """Calls `receive` with the sequences that it has not seen since they changed."""
        sequences, self._undelivered = [*self._undelivered, *changed], []
        if sequences:
            self._receive(sequences)

    def counters(self) -> EngineCounters:
        """Counters of the engine, now and since it was opened."""
        scheduler, pages, prefixes = self.scheduler, self.pages, self._prefixes
        return EngineCounters(
            **self._tally,
            steps_by_size=tuple(self._flights.steps_by_size),
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_pages=pages.num_pages,
            num_free_pages=pages.num_free,
            num_preemptions=scheduler.num_preemptions,
            num_sessions=self.sessions.num_open,
            num_sessions_given_up=scheduler.resting.num_given_up,
            prefix_cache=pages.prefix.counters(),
            snapshots=self._residence.slots.snapshots.counters(),
            logits_cache=self._logits_cache.counters(),
            prompt_cache=CacheCounters() if prefixes is None else prefixes.cache.counters(),
        )

    def logits(
        self,
        sequences: Iterable[list[int]],
        chunk_tokens: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
        first: list[int] | None = None,
    ) -> list[Float32]:
        """Logits [T - first, V] of each sequence from its `first` position on."""
        forced = list(sequences)
        begins, vocab_size = first or [0] * len(forced), self._executor.vocab_size
        found = [
            np.empty((len(ids) - begin, vocab_size), np.float32)
            for ids, begin in zip(forced, begins, strict=True)
        ]
        takes = [writer(array) for array in found]
        self.rows(STEP.name, forced, begins, takes, chunk_tokens, stopped)
        return found

    def rows(
        self,
        program: str,
        sequences: list[list[int]],
        first: list[int],
        takes: list[Take],
        chunk_tokens: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Gives the rows of a program's first output for each sequence from its `first` position
        on; see `ForcedSteps.run`. Raises UsageError for a program that the artifact lacks."""
        for token_ids in sequences:
            self.check(token_ids)
        steps = self.forced_steps(program)
        self.settle()
        steps.run(sequences, first, takes, chunk_tokens, stopped)

    def forced_steps(self, program: str = STEP.name) -> ForcedSteps:
        """Steps of given tokens. Raises UsageError for a program that the artifact lacks."""
        return ForcedSteps(
            self.scheduler,
            self._executor,
            self._builder_of(program),
            PROGRAMS[program].outputs[0].name,
            self._executor.limits.max_num_seqs,
            self._max_num_rows,
        )

    def settle(self) -> None:
        """Waits for all that the device has been given, and for the copies that the next step was
        to begin with. Then no memory of states is in use."""
        self._prepared = None
        while self._flights:
            self._undelivered += self._flights.land()
        self.deliver()
        if copies := self._residence.take_copies():
            self._executor.copy_records(copies)

    def next_numbers(self, num_sequences: int) -> tuple[int, int]:
        """The number of a new request, and the id of the first of its sequences."""
        numbers = self._num_requests, self._num_sequences
        self._num_requests += 1
        self._num_sequences += num_sequences
        return numbers

    def _builder_of(self, program: str) -> BatchBuilder:
        """Builder of a program's inputs. It keeps its page tables from step to step."""
        if program == STEP.name:
            return self._builders[0]
        if program not in self._other_builders:
            inputs, _ = self._executor.open(program).inputs
            self._other_builders[program] = BatchBuilder(inputs, self._residence)
        return self._other_builders[program]

    def touch_ahead(self) -> bool:
        """Writes a prefix for the prompt cache, or touches memory (see `Pool.touch_ahead`); for
        when there is nothing else to do."""
        if self._prefixes is not None and self._prefixes.write_one(now=True):
            return True
        pool, pages = self._executor.pool, self.pages
        return pool is not None and pool.touch_ahead(pages.num_used, pages.num_reusable)

    def close(self) -> None:
        """Closes the executor; a second call does nothing."""
        try:
            self._end_prompts()
        finally:
            self._executor.close()

    def _change_prompts(self, config: EngineConfig) -> None:
        """Opens the prompt cache of other switches. Raises UsageError."""
        wanted = config.prompt_cache, config.prompt_cache_bytes
        if wanted == self._prompts_at:
            return
        cache = None
        if config.prompt_cache is not None:
            if self._open_prompts is None:
                raise UsageError("this engine has no artifact", hint="Leave out prompt_cache.")
            cache = self._open_prompts(config.prompt_cache, config.prompt_cache_bytes)
        self._end_prompts()
        self._prompts_at = wanted
        if cache is not None:
            self._prefixes = Prefixes(self, self._executor, self.sessions, cache)

    def _end_prompts(self) -> None:
        """Writes all prefixes that are still to be written."""
        prefixes, self._prefixes = self._prefixes, None
        try:
            while prefixes is not None and prefixes.write_one(now=True):
                pass
        except IngotError:  # of a device that has failed
            _log.exception("prefixes of prompts were not kept")

    def _prepare(self, under_way: Recipients) -> Batch | None:
        """Schedules a step and lays it out in the arrays that the last one does not use."""
        chunks = self.scheduler.schedule()
        if not chunks:
            return None
        self._builders.reverse()
        return self._builders[0].build(chunks, under_way.drawing)

    def _land(self) -> list[Sequence]:
        """Waits for the first step that is under way; with overlap, works beside it."""
        try:
            if self._overlaps:
                self._go_on(self._flights.first)
        except BaseException:
            self._flights.abandon()
            raise
        taken = self._flights.land()
        self._undelivered += taken
        return taken

    def _go_on(self, under_way: Recipients) -> None:
        """Delivers, and prepares the step that comes next; submits it if the executor takes it."""
        self.deliver()
        if self._speculation is not None and (under_way.drafted or self._speculation.waits):
            return
        self._prepared = batch = self._prepare(under_way)
        if batch is not None:
            recipients = self._drawing.recipients(batch.chunks)
            if self._executor.can_follow(recipients.wants):
                self._prepared = None
                self._flights.submit(batch, recipients, beside=True)

    def _drafts(self, sequences: list[Sequence], room: int) -> list[list[int]]:
        return [] if self._speculation is None else self._speculation.drafts(sequences, room)

    def _forget(self, sequence: Sequence) -> None:
        if self._prefixes is not None:
            self._prefixes.leave(sequence)
        self.scheduler.remove(sequence)
        self._prepared = None
        if sequence.session is not None:
            sequence.session.end(sequence)
