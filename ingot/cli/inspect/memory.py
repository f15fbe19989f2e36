"""The memory that a target needs, at any context and number of sequences, and where it fits.

The sizes are those that the executors ask for: nothing is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingot.artifact.pages import most_pages
from ingot.artifact.reader import weights_name
from ingot.artifact.target import kind_of_name

if TYPE_CHECKING:
    from ingot.artifact.plan import Plan
    from ingot.cli.inspect.view import ArtifactView

GIB = 1 << 30
LEFT_OVER = 0.1  # of a machine's memory: for the system, and for Python
LOGIT_BYTES = 4
USUAL_CONTEXT = 4096
FEWEST = 4  # machines that are shown

HOSTS = {f"{size} GB": size * GIB for size in (4, 8, 16, 32, 64, 128, 256, 512)}
# GPUs that run the binaries of a level, by their memory as the driver counts it.
CARDS: Mapping[str, Mapping[str, int]] = {
    "sm_80": {
        "RTX 4090, A10, L4": 24 * GIB,
        "A100, 40 GB": 40 * GIB,
        "L40S, RTX A6000": 48 * GIB,
        "A100, 80 GB": 80 * GIB,
    },
    "sm_90": {"H100": 80 * GIB, "GH200": 96 * GIB, "H200": 140 * GIB},
    "sm_100": {"B200": 179 * GIB},
    "sm_103": {"B300": 268 * GIB},
    "sm_120": {
        "RTX 5060 Ti": 16 * GIB,
        "RTX 5090": 32 * GIB,
        "RTX PRO 6000": 96 * GIB,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """The memory of a running engine of one target.

    Attributes:
        fixed: bytes that no request changes, by what they are for; the weights come first.
        page_bytes: of a page of keys and values, in all layers.
        slot_bytes: of what a sequence keeps beside them, however long it is.
        page_size: its tokens.
        most_pages: that a sequence owns at once, however long it is.
        max_context: tokens of the longest sequence.
        max_seats: sequences that can run at once.
    """

    fixed: dict[str, int]
    page_bytes: int
    slot_bytes: int
    page_size: int
    most_pages: int
    max_context: int
    max_seats: int

    @property
    def fixed_bytes(self) -> int:
        return sum(self.fixed.values())

    @property
    def usual_context(self) -> int:
        """A context to begin with."""
        return min(USUAL_CONTEXT, self.max_context)

    def seat_bytes(self, context: int) -> int:
        """Bytes that one sequence of so many tokens keeps."""
        num_pages = min(-(-context // self.page_size), self.most_pages)
        return num_pages * self.page_bytes + self.slot_bytes

    def total_bytes(self, context: int, seats: int) -> int:
        """All that is needed while so many sequences of so many tokens run."""
        return self.fixed_bytes + seats * self.seat_bytes(context)

    @property
    def samples(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Contexts, and numbers of seats, to show a table of: up to the most, by factors of 4."""
        return _up_to(self.max_context), _up_to(self.max_seats)

    def seats_in(self, memory: int, context: int) -> int:
        """The sequences of so many tokens that a machine of so much memory can run at once."""
        room = int(memory * (1 - LEFT_OVER)) - self.fixed_bytes
        one = self.seat_bytes(context)
        return max(0, min(room // one, self.max_seats)) if one else self.max_seats * (room >= 0)


def memory_need(view: ArtifactView, target: str) -> MemoryNeed:
    """The memory that a target of an artifact needs."""
    from ingot.runtime.pool_size import SLOTS_PER_SEQ, widest_window

    plan = view.plans[target]
    limits = plan.limits
    step, page, window = limits.max_num_batched_tokens, limits.page_size, widest_window(plan)
    return MemoryNeed(
        fixed=_fixed(view, target, plan),
        page_bytes=sum(plan.page_sizes()),
        slot_bytes=SLOTS_PER_SEQ * plan.slot_bytes,
        page_size=page,
        most_pages=most_pages(limits.max_model_len, step, page, window),
        max_context=limits.max_model_len,
        max_seats=limits.max_num_seqs,
    )


def machines(target: str, need: MemoryNeed) -> dict[str, int]:
    """Typical machines that a target is for: their names, and bytes of memory.

    Those with more than the artifact can ever use are left out, but for a few.
    """
    cards = CARDS.get(target.partition(":")[2], HOSTS)
    known = HOSTS if kind_of_name(target) == "cpu" else cards
    held = [need.seats_in(each, need.max_context) == need.max_seats for each in known.values()]
    return dict(list(known.items())[: max(FEWEST, held.count(False) + 1)])


def _up_to(most: int) -> tuple[int, ...]:
    """The number and up to three smaller ones, each a quarter of the next."""
    return tuple(sorted({most >> shift for shift in (0, 2, 4, 6)} - {0}))


def _fixed(view: ArtifactView, target: str, plan: Plan) -> dict[str, int]:
    (entry,) = (each for each in view.manifest.targets if each.name == target)
    weights = view.manifest.files[weights_name(entry.layout)].size
    if target in view.built:
        from ingot.runtime.devices.cuda.memory import fixed_sizes

        sizes = fixed_sizes(plan, view.built[target].launches, weights)
        return {name.removeprefix("the "): size for name, size in sizes.items()}
    logits = plan.limits.max_logit_rows * view.manifest.model.vocab_size * LOGIT_BYTES
    return {"weights": weights, "temporaries": plan.memory.arena_bytes, "logits": logits}
