"""How many pages of keys and values an executor keeps: known from the plan, before it is opened."""

from __future__ import annotations

from ingot.artifact import pages
from ingot.artifact.host import available_memory
from ingot.artifact.plan import Plan
from ingot.errors import ResourceError


def count_pages(
    plan: Plan, max_model_len: int, kv_cache_bytes: int | None, spare: int | None = None
) -> int:
    """Pages of the KV pool, computed from the memory budget and the plan's sizes.

    Without `kv_cache_bytes` at most `spare` bytes are used: by default half of the host's free
    memory.

    Raises ResourceError when a single sequence of `max_model_len` tokens does not fit.
    """
    page_bytes = sum(plan.page_sizes())
    size, step_tokens = plan.limits.page_size, plan.limits.max_num_batched_tokens
    pages_per_seq = pages.most_pages(max_model_len, step_tokens, size, widest_window(plan))
    wanted = pages_per_seq * plan.limits.max_num_seqs
    budget = kv_cache_bytes
    if budget is None:
        spare = _half_of_memory() if spare is None else spare
        budget = wanted * page_bytes if spare is None else spare
    num_pages = min(wanted, budget // page_bytes) if page_bytes else wanted
    if num_pages < pages_per_seq:
        raise ResourceError(
            f"a KV cache of {budget} bytes holds {num_pages * size} tokens, "
            f"max_model_len is {max_model_len}",
            hint=(f"Pass max_model_len <= {num_pages * size}, or " if num_pages else "Pass ")
            + f"kv_cache_bytes >= {pages_per_seq * page_bytes}.",
        )
    return num_pages


def _half_of_memory() -> int | None:
    free = available_memory()
    return None if free is None else free // 2


def widest_window(plan: Plan) -> int:
    """The most tokens that any layer looks back at; 0 if some layer looks at all of them."""
    return pages.widest_window([s.window for s in plan.spec.states if s.kind == "paged"])
