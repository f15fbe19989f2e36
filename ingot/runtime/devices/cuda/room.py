"""Size of a model in device memory, from stated sizes alone: nothing is profiled."""

from __future__ import annotations

from collections.abc import Mapping

from ingot.artifact.pages import most_pages
from ingot.artifact.plan import Plan
from ingot.artifact.tensors import ALIGNMENT
from ingot.errors import ResourceError
from ingot.runtime.devices.memory import align
from ingot.runtime.pool_size import PoolSize, pool_size, widest_window

KV_SHARE = 0.9  # of the memory that is left for keys and values, unless a size is given


def pool_within(
    plan: Plan,
    fixed: Mapping[str, int],
    free: int,
    max_model_len: int,
    kv_cache_bytes: int | None,
) -> PoolSize:
    """Pages and slots of the pool on a device that has `free` bytes.

    Args:
        fixed: the bytes of everything else, by what it is.

    Raises ResourceError where that is too little, and says what would fit.
    """
    spare = max(0, free - sum(fixed.values()))
    budget = int(spare * KV_SHARE) if kv_cache_bytes is None else spare
    wanted = least_pool(plan, max_model_len)
    if kv_cache_bytes is not None or pool_bytes(plan, wanted) <= budget:
        wanted = pool_size(plan, max_model_len, kv_cache_bytes, budget)
    if pool_bytes(plan, wanted) + sum(fixed.values()) <= free - (spare - budget):
        return wanted
    sizes = {**fixed, "the KV cache": pool_bytes(plan, wanted)}
    parts = ", ".join(f"{size / 1e6:.1f} MB for {what}" for what, size in sizes.items())
    raise ResourceError(
        f"the model needs {sum(sizes.values()) / 1e6:.1f} MB on the GPU, which has "
        f"{free / 1e6:.1f} MB free: {parts}",
        hint=_hint(plan, budget, max_model_len, kv_cache_bytes),
    )


def pages_of_one(plan: Plan, max_model_len: int) -> int:
    """The most pages that a sequence of that length owns at once."""
    limits = plan.limits
    return most_pages(
        max_model_len, limits.max_num_batched_tokens, limits.page_size, widest_window(plan)
    )


def least_pool(plan: Plan, max_model_len: int) -> PoolSize:
    """Smallest pool for one sequence of that length."""
    return PoolSize(pages_of_one(plan, max_model_len), int(plan.slot_bytes > 0))


def array_sizes(plan: Plan, size: PoolSize) -> list[int]:
    """Bytes of each array of each state in a pool."""
    counts = {"paged": size.num_pages, "slotted": size.num_slots}
    return [align(a.nbytes * counts[a.kind], ALIGNMENT) for a in plan.state_arrays()]


def pool_bytes(plan: Plan, size: PoolSize) -> int:
    """Bytes of all of them."""
    return sum(array_sizes(plan, size))


def _hint(plan: Plan, budget: int, max_model_len: int, kv_cache_bytes: int | None) -> str:
    """Hint that says which context or pool would fit into a budget for keys and values."""
    page_bytes, slots = sum(plan.page_sizes()), int(plan.slot_bytes > 0)
    pages = max(0, budget - plan.slot_bytes) // page_bytes if page_bytes else 0
    # Arrays begin at multiples of 64 bytes.
    while pages and pool_bytes(plan, PoolSize(pages, slots)) > budget:
        pages -= 1
    sequence = pages_of_one(plan, max_model_len)
    longest = min(max_model_len, pages * plan.limits.page_size)
    if not pages:
        return "Free memory of the GPU: no sequence fits. Fewer tokens a step need less of it."
    fits = PoolSize(pages, slots).nbytes(plan)
    size = "" if kv_cache_bytes is None else f"kv_cache_bytes <= {fits}"
    if sequence <= pages:
        return f"Pass {size}: {pages // sequence} sequences of {max_model_len} tokens fit."
    both = " and ".join(filter(None, (f"max_model_len <= {longest}", size)))
    return f"Pass {both}: one sequence of {longest} tokens fits."
