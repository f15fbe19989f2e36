"""Protocol of executors: an executor runs steps on one device, and draws their tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ingot.artifact.plan import Buffer, Limits, Plan
from ingot.artifact.programs import main_of
from ingot.artifact.reader import Artifact
from ingot.errors import ArtifactError, IngotError, UsageError
from ingot.runtime.arrays import Float32, StepInputs
from ingot.runtime.initial_record import Copy

if TYPE_CHECKING:
    from ingot.runtime.output import Logprob
    from ingot.runtime.sequence import SampledSequence


@dataclass(slots=True)
class TokenScore:
    """A token that was drawn, and the log-probabilities that were asked for with it, or none."""

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
class StepWants:
    """Tokens to draw, scores to compute and rows to return of one step. Tokens are drawn and scored
    from logits only.

    Attributes:
        sequences: each draws a token, by its sampling state.
        rows: the row of the logits that each of them draws from.
        positions: the place that the token of each will have in its sequence.
        scorings: the prompt tokens to score.
        kept: the rows of all outputs that are handed back.
    """

    sequences: Sequence[SampledSequence] = ()
    rows: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    scorings: list[Scoring] = field(default_factory=list)
    kept: list[int] | slice = field(default_factory=list)

    def kept_of(self, rows: Mapping[str, Float32]) -> dict[str, Float32]:
        """A copy of the kept rows of each output, or a view of all of them."""
        return {name: each[self.kept] if self.kept else each[:0] for name, each in rows.items()}


@dataclass(slots=True)
class StepResult:
    """Tokens drawn, scores and kept rows of one step, in the order of its `StepWants`.

    An error ends its request and no other. `rows` has the kept rows of each output by its name,
    [kept rows, columns]; they are valid until the next step. `seconds` went into drawing.
    """

    tokens: list[TokenScore | IngotError]
    scores: list[list[dict[int, Logprob]] | IngotError]
    rows: dict[str, Float32]
    seconds: float

    @property
    def token_ids(self) -> list[int]:
        """The tokens; 0 where a draw failed: its sequence is over, and nobody asks for it."""
        return [draw.token if isinstance(draw, TokenScore) else 0 for draw in self.tokens]


class Places(NamedTuple):
    """What a sequence holds of the memory of states: its pages in order, and its slot, or None."""

    pages: Sequence[int]
    slot: int | None


class Opened(Protocol):
    """A program that an executor has opened."""

    @property
    def inputs(self) -> tuple[StepInputs, StepInputs]:
        """The arrays to fill before `submit`: one is filled while the step in the other runs."""
        ...


class Pending(Protocol):
    """A step that an executor has accepted."""

    def wait(self) -> StepResult:
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
    def num_slots(self) -> int:
        """Slots of the states that keep one record a sequence; 0 where there are none."""
        ...

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
        """True if a step leaves a processor free for work of the host."""
        ...

    @property
    def takes_drafts(self) -> bool:
        """True if a step may compute tokens of drafts that may be rejected. Their logits are kept,
        and `draw` is called with some of them before the next step."""
        ...

    @property
    def inputs(self) -> tuple[StepInputs, StepInputs]:
        """The arrays to fill before `submit`: one is filled while the step in the other runs."""
        ...

    def open(self, program: str) -> Opened:
        """A program of the artifact, over the same weights and pages.

        It is opened when it is first asked for. Raises UsageError for one that the artifact does
        not have, and ResourceError where there is no room for it.
        """
        ...

    def submit(self, inputs: StepInputs, draws: StepWants, *, beside: bool = False) -> Pending:
        """Accepts the step in one of the inputs of a program. Only the one that advances text draws
        and scores; of the others rows are kept.

        With `beside` it runs while the caller goes on, else at the latest when the caller waits
        for it. Tokens that are `from_draws` of the previous step are filled in. The records that
        `copies` names are copied before the step, and after those before it.
        """
        ...

    def can_follow(self, draws: StepWants) -> bool:
        """Returns whether a step with these draws can be submitted while the last one runs.

        Two steps can be under way, and no more.
        """
        ...

    def draw(
        self, logits: Float32, sequences: Sequence[SampledSequence]
    ) -> list[TokenScore | IngotError]:
        """Draws from logits [R, V] of the host, which may be overwritten. An executor that none
        of its steps can follow has no step under way."""
        ...

    def copy_records(self, copies: Sequence[Copy]) -> None:
        """Copies records to slots, in this order. No step is under way."""
        ...

    def read_states(self, places: Places, take: Callable[[memoryview], Any]) -> None:
        """Hands out the bytes of states piece by piece: of each array, in the order of the plan,
        the pages in their order, or the record of the slot. A piece is valid during the call.

        No step is under way.
        """
        ...

    def write_states(self, places: Places, fill: Callable[[memoryview], Any]) -> None:
        """Has `fill` write the bytes of states into the pieces that it is given, in the order of
        `read_states`. What it raises ends the call; the places hold anything then.

        No step is under way.
        """
        ...

    def close(self) -> None:
        """Frees everything; a second call does nothing."""
        ...


def outputs_of(plan: Plan, file: str) -> dict[str, int]:
    """Width of each output of a plan, by name. Raises ArtifactError for outputs that have no row
    for each of the R tokens that are wanted, of all N, or of the S texts."""
    outputs = plan.of_kind("output")
    if not outputs or not all(map(_has_rows, outputs)):
        raise ArtifactError(f"{file}: a program returns rows, of shape (R, N or S, columns)")
    return {output.name: output.columns for output in outputs}


def _has_rows(output: Buffer) -> bool:
    rows, *columns = output.shape
    return rows in ("R", "N", "S") and len(columns) == 1 and isinstance(columns[0], int)


def program_of(artifact: Artifact, name: str) -> Plan:
    """The plan of a program beside the main one, on the artifact's target.

    Raises UsageError for one that the artifact does not have, and ArtifactError for states that are
    not those of the main one: it could not read the pages.
    """
    entry = artifact.target
    main = main_of(entry.programs)
    if name not in entry.programs:
        raise UsageError(
            f"{artifact.path} was compiled without the program {name}",
            hint=f"Compile the model again with --programs {main},{name}; in Python that is "
            f"programs=[{main!r}, {name!r}] of ingot.compile, or in compile_options of LLM.",
        )
    plan = artifact.plan_of(entry, name)
    if plan.spec.states != artifact.plan_of(entry).spec.states:
        raise ArtifactError(
            f"{entry.programs[name].plan}: its states are not those of {main}",
            hint="Compile the model again.",
        )
    return plan
