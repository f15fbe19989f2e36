"""The options of a recording of goldens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ingot.artifact.golden import INT8_CACHE

FORMATS = ("float32", "bfloat16", "float16", "int8", "int4", f"bfloat16{INT8_CACHE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Options of a recording.

    Attributes:
        prompts: a file, see `read_prompts`; None for a few short texts.
        tokens: by how many tokens every sequence is continued, unless the model ends it sooner.
        samples: how many texts the reference draws, each from one of the prompts on.
        seed: of what it draws.
        formats: number formats, such as "bfloat16", "int8", "int4-g64" or "int4+int8-cache".
        max_model_len: as for a compile; some rotary frequencies depend on it.
    """

    prompts: Path | None = None
    tokens: int = 32
    samples: int = 16
    seed: int = 0
    formats: Sequence[str] = FORMATS
    max_model_len: int | None = None
