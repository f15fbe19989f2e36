"""What an executor is: it runs steps on one device, and draws their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ingot.artifact.plan import Limits
from ingot.artifact.reader import Artifact
from ingot.errors import IngotError
from ingot.runtime.arrays import Float32, StepInputs
from ingot.runtime.output import Logprob
from ingot.runtime.sampling_state import SampledSequence


@dataclass(slots=True)
class Draw:
    """A token, and the log-probabilities that were asked for with it (else empty)."""

    token: int
    logprobs: dict[int, Logprob]


@dataclass(frozen=True, slots=True)
class Scoring:
    """Prompt tokens whose log-probabilities are wanted.

    Row `first_row` + i of the logits is that before token i. `count`: how many of the likeliest
    tokens are wanted beside each; -1: all.
    """

    first_row: int
    tokens: Sequence[int]
    count: int


@dataclass(slots=True)
class Draws:
    """What is wanted of the logits of a step.

    Attributes:
        sequences: each draws a token, by its sampling state.
        rows: the row of the logits that each of them draws from.
        positions: the place that the token of each will have in its sequence.
        scorings: the prompt tokens to score.
        kept: the rows whose logits are handed back.
    """

    sequences: Sequence[SampledSequence] = ()
    rows: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    scorings: list[Scoring] = field(default_factory=list)
    kept: list[int] | slice = field(default_factory=list)


@dataclass(slots=True)
class Drawn:
    """What came of them, in the same order. An error ends its request and no other.

    `logits` [kept rows, V] are valid until the next step. `seconds` went into drawing.
    """

    tokens: list[Draw | IngotError]
    scores: list[list[dict[int, Logprob]] | IngotError]
    logits: Float32
    seconds: float

    @property
    def token_ids(self) -> list[int]:
        """The tokens; 0 where a draw failed: its sequence is over, and nobody asks for it."""
        return [draw.token if isinstance(draw, Draw) else 0 for draw in self.tokens]


class Pending(Protocol):
    """A step that an executor has accepted."""

    def wait(self) -> Drawn:
        """Waits for the step and its draws. To be called once, in the order of submission.

        Raises UsageError after `close`, InternalError when the kernels refuse the step.
        """
        ...


class Pool(Protocol):
    """The memory of pages, which the system gives when it is touched."""

    def touch_ahead(self, num_used: int, num_ready: int) -> bool:
        """Touches a piece of the next pages, so that no step has to wait for it.

        Pages from `num_used` on were never used, and will be in their order. `num_ready` free ones
        were, and will be used before. False: there is nothing left to touch.
        """
        ...


class Executor(Protocol):
    """Runs steps on one device, in the order of submission. For one thread only.

    Its arguments are those of `ingot.runtime.devices.open_executor`.
    """

    def __init__(
        self,
        artifact: Artifact,
        *,
        max_model_len: int,
        kv_cache_bytes: int | None,
        num_threads: int | None,
    ) -> None: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_pages(self) -> int: ...

    @property
    def window(self) -> int:
        """The most tokens that any layer looks back at; 0 if some layer looks at all of them."""
        ...

    @property
    def pool(self) -> Pool | None:
        """The pages; None if all of their memory was taken at once."""
        ...

    @property
    def leaves_processors(self) -> bool:
        """Whether a step leaves a processor of the host to work beside it."""
        ...

    @property
    def takes_drafts(self) -> bool:
        """Whether a step may compute tokens that may turn out wrong. Their logits are kept, and
        `draw` is called with some of them before the next step."""
        ...

    @property
    def inputs(self) -> tuple[StepInputs, StepInputs]:
        """The arrays to fill before `submit`: one is filled while the step in the other runs."""
        ...

    def submit(self, inputs: StepInputs, draws: Draws, *, beside: bool = False) -> Pending:
        """Accepts the step in one of `inputs`.

        With `beside` it runs while the caller goes on, else at the latest when the caller waits
        for it. Tokens that are `from_draws` of the previous step are filled in.
        """
        ...

    def can_follow(self, draws: Draws) -> bool:
        """Whether a step with these draws can be submitted before the last one is waited for.

        Two steps can be under way, and no more.
        """
        ...

    def draw(
        self, logits: Float32, sequences: Sequence[SampledSequence]
    ) -> list[Draw | IngotError]:
        """Draws from logits [R, V] of the host, which may be overwritten. An executor that none
        of its steps can follow has no step under way."""
        ...

    def close(self) -> None:
        """Frees everything; a second call does nothing."""
        ...
