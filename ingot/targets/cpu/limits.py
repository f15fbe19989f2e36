"""Which shapes the kernels take: refused here, before any C++ is compiled."""

from __future__ import annotations

from ingot.artifact.plan import Buffer
from ingot.errors import CodegenError

# The working memory of attention and of products that end in heads grows with the head and must
# fit the scratch of a thread (`scratch_bytes` in kernels/team.h).
MAX_HEAD_SIZE = 512


def check_cache(cache: Buffer) -> None:
    """Raises CodegenError for pages or heads, shape (pages, kv heads, page size, head size), that
    no kernel takes."""
    _, _, page_size, head_size = map(int, cache.shape)
    if page_size % 16:
        raise CodegenError(
            f"cache {cache.name} has pages of {page_size} tokens",
            hint="CPU targets take page sizes that are multiples of 16 (--page-size).",
        )
    if head_size % 4 or head_size > MAX_HEAD_SIZE:
        raise CodegenError(
            f"cache {cache.name} has heads of size {head_size}",
            hint=f"CPU targets take head sizes that are multiples of 4, up to {MAX_HEAD_SIZE}.",
        )
