"""Parts that launches of heads share: the cache, the width of tiles, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.artifact.launches import Constant
from ingot.artifact.plan import Buffer, Instruction
from ingot.errors import CodegenError
from ingot.targets.cuda.levels import FLOATS, LARGEST_HEAD, LARGEST_LATENT
from ingot.targets.cuda.operands import Operands, Pointer
from ingot.targets.work import where


def expect(i: Instruction, condition: bool, found: str, supported: str) -> None:
    """Raises CodegenError unless the condition holds."""
    if not condition:
        raise CodegenError(f"{where(i)}: {found}", hint=f"CUDA kernels take {supported}.")


def expect_head(i: Instruction, size: int) -> None:
    """Raises CodegenError for a head that is too large for a tile."""
    expect(i, size <= LARGEST_HEAD, f"heads of {size}", f"heads of at most {LARGEST_HEAD}")


def width_of(size: int) -> int:
    """Columns of a tile for heads of so many: a power of two that a product can sum over."""
    return max(16, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class PagedState:
    """Paged state that attention reads."""

    operands: Operands
    i: Instruction

    @property
    def buffer(self) -> Buffer:
        return self.operands.buffer(self.i, "k_cache")

    @property
    def is_scaled(self) -> bool:
        return self.buffer.format.is_scaled

    @property
    def page(self) -> int:
        """Tokens of a page."""
        return int(self.buffer.shape[2])

    @property
    def size(self) -> int:
        """Columns of a head, or of a row that all heads read."""
        return int(self.buffer.shape[3])

    @property
    def parts(self) -> tuple[str, ...]:
        """k and v, or k alone where rows are both."""
        return tuple(part for part in "kv" if f"{part}_cache" in self.i.inputs)

    @property
    def pointers(self) -> dict[str, Pointer]:
        """By the names of the kernels' arguments; none for scales that there are not."""
        states = {part: self.operands.state(self.i, f"{part}_cache") for part in self.parts}
        scales = {f"{part}_scales": scales for part, (_, scales) in states.items() if scales}
        return {f"{part}_cache": numbers for part, (numbers, _) in states.items()} | scales

    @property
    def absent(self) -> dict[str, Constant]:
        """Zeros in the place of scales that there are not."""
        return {} if self.is_scaled else {f"{part}_scales": 0 for part in self.parts}


@dataclass(frozen=True)
class PagedCache(PagedState):
    """The states of keys and values that an instruction reads or writes.

    Raises:
        CodegenError: no kernel takes them.
    """

    def __post_init__(self) -> None:
        keys, values = self.buffer, self.operands.buffer(self.i, "v_cache")
        expect_head(self.i, self.size)
        same = (keys.shape, keys.format) == (values.shape, values.format)
        expect(self.i, same, f"keys in {keys.format} and values in {values.format}", "equal ones")
        whole = not self.is_scaled or keys.format.block == self.size
        expect(
            self.i,
            whole,
            f"heads of {self.size} in {keys.format}",
            "int8 caches with a scale for every head",
        )
        known = (*FLOATS, "int8") if self.is_scaled else FLOATS
        expect(self.i, keys.dtype in known, f"a cache in {keys.format}", f"{', '.join(FLOATS)}")

    @property
    def kv_heads(self) -> int:
        return int(self.buffer.shape[1])

    @property
    def constants(self) -> dict[str, Constant]:
        return {"PAGE": self.page, "SCALED": self.is_scaled, **self.absent}


@dataclass(frozen=True)
class LatentCache(PagedState):
    """The state of rows that are keys and, in their first columns, values.

    Raises:
        CodegenError: no kernel takes it.
    """

    def __post_init__(self) -> None:
        form, size = self.buffer.format, self.size
        most = f"rows of at most {LARGEST_LATENT}"
        expect(self.i, size <= LARGEST_LATENT, f"latent rows of {size}", most)
        expect(self.i, self.buffer.shape[1] == 1, "several rows a token", "one row a token")
        known = (*FLOATS, "int8") if self.is_scaled else FLOATS
        expect(self.i, form.dtype in known, f"a cache in {form}", ", ".join(FLOATS))
        whole = size % self.block == 0
        expect(self.i, whole, f"rows of {size} in {form}", "int8 rows of whole blocks")

    @property
    def block(self) -> int:
        """Columns that share a scale, or of a program that writes them."""
        return self.buffer.format.block if self.is_scaled else self.size

    @property
    def constants(self) -> dict[str, Constant]:
        own = {"D": self.size, "PAGE": self.page, "BLOCK": self.block}
        return {**own, "SCALED": self.is_scaled, **self.absent}
