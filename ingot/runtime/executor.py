"""What an executor is: it runs one step of the plan over flat arrays."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ingot.artifact.plan import Limits
from ingot.runtime.native_sampler import SamplerKernels

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


class StepInputs:
    """The arrays of a step, made once for the largest and filled anew for each.

    All int32. N tokens, S sequences, R rows that need logits, P pages of a sequence:
    tokens[N] positions[N] slots[N] query_start[S+1] context_lens[S] page_table[S,P] logit_rows[R].
    Only the first num_tokens, num_seqs and num_rows entries of each count.
    """

    def __init__(self, limits: Limits) -> None:
        self.num_tokens = self.num_seqs = self.num_rows = 0
        self.tokens = np.zeros(limits.max_num_batched_tokens, np.int32)
        self.positions = np.zeros(limits.max_num_batched_tokens, np.int32)
        self.slots = np.zeros(limits.max_num_batched_tokens, np.int32)
        self.query_start = np.zeros(limits.max_num_seqs + 1, np.int32)
        self.context_lens = np.zeros(limits.max_num_seqs, np.int32)
        self.page_table = np.zeros((limits.max_num_seqs, limits.max_pages_per_seq), np.int32)
        self.logit_rows = np.zeros(limits.max_logit_rows, np.int32)

    def clear(self) -> None:
        self.num_tokens = self.num_seqs = self.num_rows = 0


class Pending(Protocol):
    """A step that an executor has accepted."""

    def wait(self) -> Float32:
        """Waits for the step; returns logits [num_rows, V], a view valid until the next step.

        Raises UsageError after `close`, InternalError when the kernels refuse the step.
        """
        ...


class Executor(Protocol):
    """Runs steps on one device. For one thread only."""

    @property
    def limits(self) -> Limits: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_pages(self) -> int: ...

    @property
    def window(self) -> int:
        """Tokens that every layer looks back at, at most; 0: some look at all."""
        ...

    @property
    def leaves_processors(self) -> bool:
        """Whether a step leaves a processor of the host to work beside it."""
        ...

    @property
    def kernels(self) -> SamplerKernels | None:
        """What draws from its logits; None: numpy does."""
        ...

    @property
    def inputs(self) -> tuple[StepInputs, StepInputs]:
        """The arrays to fill before `submit`: one is filled while the step in the other runs."""
        ...

    def submit(self, inputs: StepInputs, *, beside: bool = False) -> Pending:
        """Accepts the step in one of `inputs`. With `beside` it runs while the caller goes on,
        else at the latest when the caller waits for it."""
        ...

    def close(self) -> None:
        """Frees everything; a second call does nothing."""
        ...
