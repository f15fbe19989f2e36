"""Golden rows as data: what the float32 reference returns in the programs that give no logits.

An artifact has a file of them for each such program: of one that advances text the row of the last
token of a handful of prompts, of one that reads whole texts what each becomes. `ingot golden
record` writes the latter of texts of one's own. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ingot.artifact.golden import GoldenModel, decode_format, malformed
from ingot.artifact.programs import PROGRAMS

ROWS_FORMAT = 2  # a reader refuses others
Float64 = npt.NDArray[np.float64]


class GoldenRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A prompt, and its row.

    `text`: what the tokens were encoded from; None where they were given as tokens.
    """

    tokens: list[int]
    row: list[float]
    text: str | None = None

    @property
    def given_tokens(self) -> list[int]:
        return self.tokens


@dataclass(frozen=True, slots=True)
class RowsTolerance:
    """The relative error that a number format's own rounding makes, and the one that is allowed:
    the norm of the differences of all rows, divided by that of the rows."""

    noise: float
    allowed: float

    def __add__(self, other: RowsTolerance) -> RowsTolerance:
        return RowsTolerance(self.noise + other.noise, self.allowed + other.allowed)


class GoldenRows(msgspec.Struct, forbid_unknown_fields=True):
    """The reference's rows of a program; `tolerances` has the number formats by name, see
    `format_name`."""

    format: int
    program: str
    model: GoldenModel
    tolerances: dict[str, RowsTolerance]
    prompts: list[GoldenRow]


@dataclass(frozen=True, slots=True)
class RowsError:
    """How far rows are from the golden ones.

    Attributes:
        relative: the norm of the differences of all rows, divided by that of the golden rows.
        largest: the largest |difference| of a number.
        cosine: the least cosine of a row and its golden one.
    """

    relative: float
    largest: float
    cosine: float


def rows_file(program: str) -> str:
    """Path of a program's golden rows in an artifact."""
    return f"golden/{program}.json"


def encode_rows(golden: GoldenRows) -> bytes:
    """The file, with a line for each prompt."""
    head = msgspec.json.encode(msgspec.structs.replace(golden, prompts=[]))
    prompts = b",\n".join(map(msgspec.json.encode, golden.prompts))
    return head.removesuffix(b"]}") + b"\n" + prompts + b"\n]}\n"


def are_rows(data: bytes) -> bool:
    """Tells whether a file of goldens has rows of a program, and no log-probabilities."""

    class Head(msgspec.Struct):
        program: str = ""

    try:
        return bool(msgspec.json.decode(data, type=Head).program)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def decode_rows(data: bytes, where: str) -> GoldenRows:
    """The content of a file, which messages call `where`. Raises GoldenError if it is none."""
    golden = decode_format(data, GoldenRows, ROWS_FORMAT, where)
    if fault := _fault(golden):
        raise malformed(where, fault)
    return golden


def _fault(golden: GoldenRows) -> str:
    """Describes a contradiction; empty if there is none."""
    widths = {len(prompt.row) for prompt in golden.prompts}
    if golden.program not in PROGRAMS:
        return f"there is no program {golden.program!r:.40}"
    if not golden.tolerances:
        return "it has no number format"
    if len(widths) != 1 or 0 in widths:
        return "its rows are of several widths" if len(widths) > 1 else "it has no row"
    for index, prompt in enumerate(golden.prompts):
        if not prompt.tokens:
            return f"prompt {index} has no token"
        if not all(0 <= token < golden.model.vocab_size for token in prompt.tokens):
            return f"prompt {index} has a token beyond the vocabulary of {golden.model.vocab_size}"
    return ""


def rows_error(found: Sequence[npt.NDArray[Any]], golden: GoldenRows) -> RowsError:
    """Compares rows with the golden ones; errors are infinite if they are not finite."""
    ours = np.array([row.astype(np.float64) for row in found])
    theirs = np.array([prompt.row for prompt in golden.prompts])
    if not np.isfinite(ours).all():
        return RowsError(inf, inf, -1.0)
    apart = ours - theirs
    relative = float(np.linalg.norm(apart) / np.linalg.norm(theirs))
    return RowsError(
        relative if isfinite(relative) else inf,
        float(np.abs(apart).max()),
        float(cosines(ours, theirs).min()),
    )


def cosines(one: Float64, other: Float64) -> Float64:
    """The cosine of each row of one with that of the other; 0 where a row has no length."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    products = np.einsum("ij,ij->i", one, other)
    found: Float64 = np.divide(products, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return found
