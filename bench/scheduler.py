"""The scheduler by itself: no model, no arrays, as many steps as wanted."""

from __future__ import annotations

import random
import time

from ingot.runtime.config import EngineConfig
from ingot.runtime.page_table import PageTable
from ingot.runtime.params import SamplingParams
from ingot.runtime.residence import Residence
from ingot.runtime.scheduler import Scheduler
from ingot.runtime.sequence import Sequence

PAGES, PAGE_SIZE, SEQS, TOKENS = 1000, 16, 64, 512
STEMS = [[stem] * 64 for stem in range(8)]


def sequence_steps_per_second(steps: int) -> tuple[float, str]:
    """Sequences advanced in a second, over that many steps; and what has happened in them."""
    rng, params = random.Random(0), SamplingParams()
    pages = PageTable(PAGES, PAGE_SIZE)
    scheduler = Scheduler(
        Residence(pages),
        max_num_seqs=SEQS,
        max_num_tokens=TOKENS,
        max_num_rows=SEQS,
        config=EngineConfig(),
    )
    num_added = num_advanced = 0
    began = time.perf_counter()
    for _ in range(steps):
        while len(scheduler.waiting) < 4:
            tokens = STEMS[num_added % 8] + [num_added] * rng.randrange(1, 200)
            length = len(tokens) + rng.randrange(1, 512)
            rank = (num_added, num_added)
            scheduler.add(Sequence(num_added, tokens, params, length, rank=rank))
            num_added += 1
        chunks = scheduler.schedule()
        scheduler.advance(chunks)
        scheduler.complete(chunks)
        num_advanced += len(chunks)
        for chunk in chunks:
            sequence = chunk.sequence
            if chunk.draws:
                sequence.num_pending = 0
                sequence.token_ids.append(num_added)
                if len(sequence.token_ids) >= sequence.max_len:
                    scheduler.remove(sequence)
    seconds = time.perf_counter() - began
    pages.check()
    rate = pages.prefix.counters().hit_rate
    note = (
        f"{num_advanced / steps:.0f} sequences a step, {num_added} in all, "
        f"{scheduler.num_preemptions} preemptions, {100 * rate:.0f} % of prompts cached"
    )
    return num_advanced / seconds, note
