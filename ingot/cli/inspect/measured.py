"""Reads what `ingot bench --json` measured of an artifact, for its page."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ingot.artifact.manifest import Manifest
from ingot.errors import UsageError


class MeasuredLimits(msgspec.Struct, frozen=True):
    """Limits of the machine: bytes read and operations by kind of arithmetic, per second."""

    threads: int
    read_bytes_per_second: float
    operations_per_second: dict[str, float]


class MeasuredPhase(msgspec.Struct, frozen=True):
    """A kind of step: `share` is that of its limit, `bound` what the limit comes from."""

    name: str
    tokens_per_second: float
    seconds: float
    share: float
    bound: str


class Measured(msgspec.Struct, frozen=True):
    """A bench of one target of an artifact, on a host whose processor it names."""

    digest: str
    target: str
    processor: str
    limits: MeasuredLimits
    phases: list[MeasuredPhase]


def read_measured(file: Path, manifest: Manifest) -> Measured:
    """The bench in a file.

    Raises UsageError where it cannot be read, is no such document, or is of another artifact.
    """
    again = "Measure again: `ingot bench ARTIFACT --json > FILE`."
    try:
        measured = msgspec.json.decode(file.read_bytes(), type=Measured)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}", hint=again) from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        what = f"{file} is not what `ingot bench --json` prints: {error}"
        raise UsageError(what, hint=again) from error
    if measured.digest != manifest.digest:
        raise UsageError(
            f"{file} is of another artifact: {measured.digest[:12]}, and this is "
            f"{manifest.digest[:12]}",
            hint=again,
        )
    return measured
