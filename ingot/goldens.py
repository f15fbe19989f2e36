"""Files of goldens: what the float32 reference says of a model, for who ships artifacts of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.compiling import check_torch
from ingot.errors import UsageError
from ingot.files import unwritable, write_whole
from ingot.models.model_dir import ModelDir

if TYPE_CHECKING:
    from ingot.compiler.options import Progress
    from ingot.compiler.record_options import RecordOptions


def record(
    model_dir: Path,
    out: Path,
    options: RecordOptions | None = None,
    progress: Progress | None = None,
    *,
    replace: bool = True,
) -> bytes:
    """Records goldens of a model directory in a file, and returns what it holds.

    The file appears complete or not at all. Raises UsageError where it cannot be written, or is
    there already and must not be replaced, and what `record_golden` raises.
    """
    check_out(out, replace=replace)
    source = ModelDir.open(model_dir)
    source.check()
    check_torch()
    from ingot.compiler.torch_import import import_torch

    import_torch()
    from ingot.compiler.golden_record import record_golden
    from ingot.compiler.options import silent
    from ingot.compiler.record_options import RecordOptions

    data = record_golden(
        source, options or RecordOptions(), progress=progress or silent, folder=out.parent
    )
    write_whole(out, data)
    return data


def check_out(out: Path, *, replace: bool) -> None:
    """Raises UsageError if nothing can be written to a path, before there is anything to write."""
    if os.path.lexists(out) and not out.is_file():
        raise UsageError(f"{out} is no file", hint="Name another output.")
    if os.path.lexists(out) and not replace:
        raise UsageError(f"{out} exists", hint="Give --force to replace it.")
    try:
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise unwritable(out, error) from error
