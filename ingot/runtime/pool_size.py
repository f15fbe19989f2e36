"""Numbers of pages and slots that an executor keeps, known from the plan before it is opened."""

from __future__ import annotations

from typing import NamedTuple

from ingot.artifact import pages
from ingot.artifact.host import available_memory
from ingot.artifact.plan import Plan
from ingot.errors import ResourceError

SLOTS_PER_SEQ = 3  # its own, one for where it has come to, and one for where others begin


class PoolSize(NamedTuple):
    """Numbers of pages and slots of a pool."""

    num_pages: int
    num_slots: int

    def nbytes(self, plan: Plan) -> int:
        """Bytes of its arrays, without what lies between them."""
        return self.num_pages * sum(plan.page_sizes()) + self.num_slots * plan.slot_bytes


def pool_size(
    plan: Plan, max_model_len: int, kv_cache_bytes: int | None, spare: int | None = None
) -> PoolSize:
    """Pages and slots of the pool, computed from the memory budget and the plan's sizes.

    Without `kv_cache_bytes` at most `spare` bytes are used: by default half of the host's free
    memory. Where all that sequences can need does not fit, pages and slots shrink alike. There are
    three slots for each sequence of a step: its own, and two for snapshots.

    Without paged states, pages take no memory. Then there are enough for every slot to be that of a
    sequence of full length, and no length is refused.

    Raises ResourceError when a single sequence of `max_model_len` tokens does not fit.
    """
    page_bytes, slot_bytes = sum(plan.page_sizes()), plan.slot_bytes
    size, step_tokens = plan.limits.page_size, plan.limits.max_num_batched_tokens
    pages_per_seq = pages.most_pages(max_model_len, step_tokens, size, widest_window(plan))
    most_seqs = plan.limits.max_num_seqs
    num_slots = SLOTS_PER_SEQ * most_seqs * bool(slot_bytes)
    num_chains = most_seqs if page_bytes else max(most_seqs, num_slots)
    wanted = PoolSize(pages_per_seq * num_chains, num_slots)
    whole = wanted.nbytes(plan)
    budget = kv_cache_bytes
    if budget is None:
        spare = _half_of_memory() if spare is None else spare
        budget = whole if spare is None else spare
    least = pages_per_seq * page_bytes + slot_bytes
    if budget < least:
        raise _too_little(plan, budget, max_model_len, least)
    if budget >= whole:
        return wanted
    share = max(1, wanted.num_slots * budget // whole) if slot_bytes else 0
    num_slots = min(share, (budget - pages_per_seq * page_bytes) // slot_bytes) if share else 0
    room = (budget - num_slots * slot_bytes) // page_bytes if page_bytes else wanted.num_pages
    return PoolSize(min(wanted.num_pages, room), num_slots)


def _tokens_within(plan: Plan, budget: int) -> int:
    """The tokens of one sequence that a budget has room for."""
    page_bytes, left = sum(plan.page_sizes()), max(0, budget - plan.slot_bytes)
    return left // page_bytes * plan.limits.page_size if page_bytes else 0


def _too_little(plan: Plan, budget: int, max_model_len: int, least: int) -> ResourceError:
    if not plan.page_sizes():
        return ResourceError(
            f"{budget} bytes hold no sequence, whose record takes {least}",
            hint=f"Pass kv_cache_bytes >= {least}.",
        )
    num_tokens = _tokens_within(plan, budget)
    return ResourceError(
        f"a KV cache of {budget} bytes holds {num_tokens} tokens, max_model_len is {max_model_len}",
        hint=(f"Pass max_model_len <= {num_tokens}, or " if num_tokens else "Pass ")
        + f"kv_cache_bytes >= {least}.",
    )


def _half_of_memory() -> int | None:
    free = available_memory()
    return None if free is None else free // 2


def widest_window(plan: Plan) -> int:
    """The most tokens that any layer looks back at; 0 if some layer looks at all of them."""
    return pages.widest_window([s.window for s in plan.spec.states if s.kind == "paged"])
