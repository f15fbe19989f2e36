"""The programs of a model: what each is given, and what it returns.

A program is one computation of an artifact, under a name. Of its outputs the rows and the meaning
are declared here; the model decides how wide they are, and which states there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ingot.artifact.spec import Array, Dim, StateKind

# The inputs that lead to states, each to those of a kind.
LEADS_TO: Mapping[str, StateKind] = {"slots": "paged", "page_table": "paged", "records": "slotted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A computation that an artifact holds.

    Attributes:
        inputs: in the order of graphs, structs and pages. Those that lead to states of a kind are
            given only where there are some; see `inputs_for`.
        outputs: in the order of the graph's results; shapes give the dimensions of rows alone.
    """

    name: str
    meaning: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    def inputs_for(self, *kinds: StateKind) -> tuple[Array, ...]:
        """The inputs where there are states of these kinds."""
        return tuple(a for a in self.inputs if LEADS_TO.get(a.name) in (None, *kinds))

    @property
    def rows(self) -> Array | None:
        """The input that says of which tokens the program returns a row; None for a program that
        returns one for each sequence."""
        return next((array for array in self.inputs if array.shape == ("R",)), None)

    @property
    def gives(self) -> Dim:
        """What there is a row of in its outputs: tokens that are wanted, all, or sequences."""
        return self.outputs[0].shape[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its outputs."""
        return tuple(array.name for array in self.outputs)

    @property
    def keeps(self) -> bool:
        """Tells whether it keeps something of a sequence for later steps."""
        return any(array.name in LEADS_TO for array in self.inputs)


def _input(name: str, shape: tuple[Dim, ...], meaning: str, plain: str = "") -> Array:
    return Array(name=name, dtype="int32", shape=shape, meaning=meaning, plain=plain)


def _rows(name: str, symbol: str = "R") -> Array:
    return Array(name=name, dtype="float32", shape=(symbol,), meaning=name)


_TEXT = (
    _input("tokens", ("N",), "token ids, sequence by sequence", "input_ids"),
    _input("positions", ("N",), "place of each token in its sequence", "positions"),
    _input("slots", ("N",), "where its keys and values go: page * page size + place in the page"),
    _input("spans", ("S", 3), "first token of each sequence, their end, position of the first"),
    _input("page_table", ("S", "P"), "pages of each sequence, in order"),
    _input("records", ("S",), "slot that holds the one record of each sequence"),
)

LOGITS = "logits"
STEP = Program(
    name="step",
    meaning="advances text",
    inputs=(
        *_TEXT,
        _input("logit_rows", ("R",), "tokens of the step whose logits are wanted"),
    ),
    outputs=(_rows(LOGITS),),
)

HIDDEN = Program(
    name="hidden",
    meaning="gives last hidden states, which embeddings are pooled from",
    inputs=(
        *_TEXT,
        _input("hidden_rows", ("R",), "tokens of the step whose hidden states are wanted"),
    ),
    outputs=(_rows("hidden"),),
)

VECTORS = "vectors"
_SEGMENTS = (
    *_TEXT[:2],
    _input("spans", ("S", 3), "first token of each text, their end, how many are not pooled"),
)
ENCODE = Program(
    name="encode",
    meaning="gives a vector for each text, which it sees whole",
    inputs=_SEGMENTS,
    outputs=(_rows(VECTORS, "S"),),
)

TOKENS = Program(
    name="tokens",
    meaning="gives a vector for each token of a text, which it sees whole",
    inputs=_SEGMENTS,
    outputs=(_rows("token_vectors", "N"),),
)


def main_of(names: Iterable[str]) -> str:
    """Of an artifact's programs the one that it is for: what it does when nothing else is asked."""
    there = {*names}
    return next((name for name in PROGRAMS if name in there), STEP.name)


def meaning_of(name: str) -> str:
    """Describes the purpose of a program; empty for one of a newer ingot."""
    program = PROGRAMS.get(name)
    return program.meaning if program else ""


PROGRAMS: Mapping[str, Program] = {each.name: each for each in (STEP, HIDDEN, ENCODE, TOKENS)}
