"""Limits of the kernels: shapes that they do not take are refused before any C++ is compiled."""

from __future__ import annotations

from ingot.artifact.plan import Buffer
from ingot.errors import CodegenError

# The working memory of attention and of products that end in heads grows with the head and must
# fit the scratch of a thread (`scratch_bytes` in kernels/team.h).
MAX_HEAD_SIZE = 512
MAX_LATENT_SIZE = 640  # of a row that all heads read, as key and as value
MAX_MATRIX_ROWS = 512  # of the matrix that a head of a recurrence keeps


def check_cache(cache: Buffer, largest: int = MAX_HEAD_SIZE, what: str = "heads") -> None:
    """Raises CodegenError for a shape (pages, kv heads, page size, head size) that no kernel takes.
    Messages call the heads `what`."""
    _, _, page_size, head_size = map(int, cache.shape)
    if page_size % 16:
        raise CodegenError(
            f"cache {cache.name} has pages of {page_size} tokens",
            hint="CPU targets take page sizes that are multiples of 16 (--page-size).",
        )
    _check_size(f"cache {cache.name} has", head_size, largest, what)


def check_heads(keys: Buffer, values: Buffer) -> None:
    """Raises CodegenError for rows (rows, kv heads, head size) that attention without a cache does
    not take."""
    if keys.shape != values.shape:
        raise CodegenError(
            f"keys {keys.name} have shape {keys.shape}, and values {values.shape}",
            hint="CPU targets take segments whose keys and values have one shape.",
        )
    _check_size(f"{keys.name} has", int(keys.shape[-1]), MAX_HEAD_SIZE, "heads")


def check_matrices(state: Buffer, size: int, width: int) -> None:
    """Raises CodegenError for heads with matrices of so many rows and columns that no kernel
    takes."""
    if size > MAX_MATRIX_ROWS:
        raise CodegenError(
            f"{state.name} has matrices of {size} rows and {width} columns",
            hint=f"CPU targets take recurrences of up to {MAX_MATRIX_ROWS} rows a head.",
        )


def _check_size(found: str, size: int, largest: int, what: str) -> None:
    if size % 4 or size > largest:
        raise CodegenError(
            f"{found} {what} of size {size}",
            hint=f"CPU targets take {what} of sizes that are multiples of 4, up to {largest}.",
        )
