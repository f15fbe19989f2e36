"""Compiling a model directory, with the golden prompts replayed before the artifact appears."""

from __future__ import annotations

import atexit
import dataclasses
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Any

from ingot.artifact.host import available_memory
from ingot.artifact.reader import Artifact
from ingot.artifact.writer import check_writable
from ingot.compiler.torch_import import check_torch, import_torch
from ingot.errors import (
    IncompatibleHostError,
    IngotError,
    RequestError,
    ResourceError,
    UsageError,
    VerificationError,
)
from ingot.files import unwritable, write_whole
from ingot.models.model_dir import ModelDir
from ingot.runtime.tokenizer_files import tokenizer_in
from ingot.runtime.verify import FAULT, compile_hint, replay

if TYPE_CHECKING:
    from ingot.compiler.options import CompileOptions, Progress, Report
    from ingot.compiler.record_options import RecordOptions


# Gets the folder of an artifact whose code is wrong, and the model directory. Says which part is.
Blame = Callable[[Path, Path], str]

# What is tried where code is wrong: plainer kernels, and plainer numbers.
REMEDIES: dict[str, dict[str, Any]] = {
    "--target cpu:portable": {"targets": ("cpu:portable",)},
    "--dtype float32": {"dtype": "float32"},
}
RARELY = (100_000, 20, 100)  # thresholds of Python's search for garbage


def compile_checked(
    path: Path,
    out: Path,
    options: CompileOptions | None = None,
    progress: Progress | None = None,
    *,
    replace: bool = True,
    blame: Blame = lambda folder, path: "",
) -> Report:
    """Compiles the model directory at a path, and replays the golden prompts on this host before
    the artifact appears.

    Raises VerificationError, with nothing left at `out`, when they are not reproduced, which says
    what `blame` finds and which options help; QualityError for formats that ruin the model; and
    without `replace` UsageError for an artifact that is at `out` already.
    """
    model_dir = check_before_torch(path, out, options)
    from ingot.compiler.options import CompileOptions, silent
    from ingot.compiler.preflight import compilers_begun

    progress, options = progress or silent, options or CompileOptions()
    with _little_collected(), compilers_begun(options.targets):
        import_torch()
        from ingot.compiler.compile import compile_model

        try:
            return compile_model(
                model_dir,
                out,
                options,
                progress=progress,
                check=partial(code_gate, path=path, blame=blame),
                conversation=conversation,
                replace=replace,
            )
        except VerificationError as error:
            if error.hint != FAULT:
                raise
            helps = remedy(model_dir, out, options, progress)
            raise VerificationError(error.found, hint=f"{FAULT}\n{helps}".strip()) from error


def remedy(model_dir: ModelDir, out: Path, options: CompileOptions, progress: Progress) -> str:
    """Which options make the code gate pass, in words; they are tried in a folder beside `out`."""
    from ingot.compiler.compile import compile_model

    remedies = remedies_for(options)
    for words, tried in remedies.items():
        progress("remedy", words, None)
        with (
            suppress(IngotError),
            TemporaryDirectory(dir=out.parent, prefix=".ingot-") as folder,
        ):
            report = compile_model(
                model_dir, Path(folder, "a.ingot"), tried, progress=progress, check=golden_error
            )
            if report.golden_error is not None:
                return f"Until it is mended, this was tried, and its outputs are right: {words}"
    return f"Tried, without success: {', '.join(remedies)}" if remedies else ""


def remedies_for(options: CompileOptions) -> dict[str, CompileOptions]:
    """The options of each remedy that differs from those given. No CPU stands in for a GPU."""
    changed = {words: dataclasses.replace(options, **each) for words, each in REMEDIES.items()}
    on_cpus = all(target.startswith("cpu:") for target in options.targets)
    return {
        words: tried
        for words, tried in changed.items()
        if tried != options and (on_cpus or tried.targets == options.targets)
    }


def add_checked(path: Path, out: Path, options: CompileOptions, progress: Progress) -> Report:
    """Adds targets to the artifact at `out`; see `add_targets`. Otherwise as `compile_checked`."""
    model_dir = check_before_torch(path, out, options)
    from ingot.compiler.preflight import compilers_begun

    with _little_collected(), compilers_begun(options.targets):
        import_torch()
        from ingot.compiler.add import add_targets

        return add_targets(model_dir, out, options, progress=progress, check=golden_error)


@contextmanager
def _little_collected() -> Iterator[None]:
    """Lets Python look for garbage rarely, and not at all when the process ends.

    PyTorch makes a million objects that stay. Looking through them takes a second at the end, and
    another while it is imported and a model is exported.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*RARELY)
    atexit.unregister(_leave_garbage)
    atexit.register(_leave_garbage)
    try:
        yield
    finally:
        if thresholds != RARELY:  # those of another compile, which puts back what was before it
            gc.set_threshold(*thresholds)


def _leave_garbage() -> None:
    # Triton, which PyTorch imports where it is installed, reports on stderr what nobody collected.
    if "triton" not in sys.modules:
        gc.freeze()


def check_before_torch(path: Path, out: Path, options: CompileOptions | None = None) -> ModelDir:
    """Opens a model directory, and looks for what is missing before PyTorch is imported, which
    takes seconds.

    Raises:
        ModelDirError: it is no directory, config.json or the tokenizer is missing, or config.json
            is no JSON.
        UsageError: nothing can be written to `out`.
        CompileError: PyTorch is not installed.
        ToolchainError: Triton is not, and a target needs it.
    """
    model_dir = ModelDir.open(path)
    model_dir.check()
    check_writable(out)
    check_torch()
    if options is not None:
        from ingot.compiler.choose_targets import check_packages

        check_packages(options.targets)
    return model_dir


def conversation(folder: Path) -> list[int]:
    """The conversation that quality is measured on, as the tokenizer in a folder renders it; no
    tokens where there is no chat template, or one that does not take it."""
    from ingot.compiler.quality_text import CONVERSATION

    tokenizer = tokenizer_in(folder)
    if tokenizer is None:
        return []
    try:
        text = tokenizer.apply_chat_template(CONVERSATION, add_generation_prompt=False)
    except RequestError:
        return []
    return tokenizer.encode(text, add_special_tokens=False)


def code_gate(folder: Path, path: Path, blame: Blame) -> float | None:
    """As `golden_error`; an error says what is to blame."""
    try:
        return golden_error(folder)
    except VerificationError as error:
        at_fault = blame(folder, path)
        found = f"the code gate: {error.found}" + (f"\n  {at_fault}" if at_fault else "")
        raise VerificationError(found, hint=error.hint) from error


def golden_error(folder: Path) -> float | None:
    """The mean golden error of an artifact's folder on this host.

    None where this host has none of the targets, or too little free memory to run one.
    Raises VerificationError when the golden outputs are not reproduced.
    """
    artifact = Artifact.open(folder, unfinished=True)
    weights = sum(artifact.manifest.files[name].size for name in artifact.names("weights"))
    free = available_memory()
    if free is not None and free < weights:
        return None
    try:
        found = replay(artifact)
    except (IncompatibleHostError, ResourceError):
        return None
    found.raise_if_failed(compile_hint(artifact, found))
    return found.error


def record_goldens(
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
    check_golden_out(out, replace=replace)
    source = ModelDir.open(model_dir)
    source.check()
    check_torch()
    import_torch()
    from ingot.compiler.golden_record import record_golden
    from ingot.compiler.options import silent
    from ingot.compiler.record_options import RecordOptions

    data = record_golden(
        source, options or RecordOptions(), progress=progress or silent, folder=out.parent
    )
    write_whole(out, data)
    return data


def check_golden_out(out: Path, *, replace: bool) -> None:
    """Raises UsageError if nothing can be written to a path, before there is anything to write."""
    if os.path.lexists(out) and not out.is_file():
        raise UsageError(f"{out} is no file", hint="Name another output.")
    if os.path.lexists(out) and not replace:
        raise UsageError(f"{out} exists", hint="Give --force to replace it.")
    try:
        with TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise unwritable(out, error) from error
