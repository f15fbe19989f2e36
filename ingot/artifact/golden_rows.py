"""Golden rows as data: what the float32 reference returns in the programs that give no logits.

An artifact has a file of them for each such program, with the row of the last token of a handful of
prompts. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from ingot.artifact.decoding import decode_json
from ingot.errors import GoldenError

ROWS_FORMAT = 1  # a reader refuses others


class GoldenRow(msgspec.Struct, forbid_unknown_fields=True):
    """A prompt, and the row of its last token."""

    tokens: list[int]
    row: list[float]


class GoldenRows(msgspec.Struct, forbid_unknown_fields=True):
    """The reference's rows of a program, and the error that the artifact's number format may have.

    `noise` is the relative error that the format's own rounding makes: the norm of the differences
    of all rows, divided by that of the rows. `allowed` is what is allowed.
    """

    format: int
    program: str
    noise: float
    allowed: float
    prompts: list[GoldenRow]


def rows_file(program: str) -> str:
    """Path of a program's golden rows in an artifact."""
    return f"golden/{program}.json"


def encode_rows(golden: GoldenRows) -> bytes:
    """The file, with a line for each prompt."""
    head = msgspec.json.encode(msgspec.structs.replace(golden, prompts=[]))
    prompts = b",\n".join(map(msgspec.json.encode, golden.prompts))
    return head.removesuffix(b"]}") + b"\n" + prompts + b"\n]}\n"


def decode_rows(data: bytes, where: str) -> GoldenRows:
    """The content of a file, which messages call `where`. Raises GoldenError if it is none."""
    try:
        golden = decode_json(data, GoldenRows)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise GoldenError(f"{where}: {error}", hint="Compile the model again.") from error
    widths = {len(prompt.row) for prompt in golden.prompts}
    lengths = {len(prompt.tokens) for prompt in golden.prompts}
    if golden.format != ROWS_FORMAT or len(widths) != 1 or 0 in widths | lengths:
        raise GoldenError(f"{where}: it is not what this ingot reads", hint="Compile it again.")
    return golden


def relative_error(found: Sequence[npt.NDArray[np.float32]], golden: GoldenRows) -> float:
    """Relative error of rows against the golden ones; infinite if they are not finite."""
    ours = np.array([row.astype(np.float64) for row in found])
    theirs = np.array([prompt.row for prompt in golden.prompts])
    error = float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
    return error if math.isfinite(error) else math.inf
