"""Model directories and names on the hub, turned into artifacts by a process of their own.

So PyTorch, the network and what a model's files may do to a parser stay out of the server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from ingot.artifact.tree import is_artifact
from ingot.errors import CompileError, IngotError, InternalError, describe
from ingot.serve.isolated.messages import Fault
from ingot.serve.isolated.spawn import command, end_of, tie_to_parent


class Outcome(Struct, frozen=True):
    """Outcome of a compile process: the artifact, or why there is none."""

    path: str = ""
    fault: Fault | None = None


async def artifact_of(source: str, device: str, tell: Callable[[str], None]) -> str:
    """The artifact at `source`, or the one in the cache that it is compiled to once.

    `tell` gets lines about the progress. Cancelling this ends the compile. Raises what
    `ingot.opening.artifact_path` raises.
    """
    if is_artifact(Path(source)):
        return source
    with TemporaryDirectory(prefix="ingot-compile-") as scratch:
        answer, code = await _compiled(source, device, scratch, tell)
    return _path(answer, code, source)


async def _compiled(
    source: str, device: str, scratch: str, tell: Callable[[str], None]
) -> tuple[bytes, int]:
    """Runs the compile process, and returns its output and exit code."""
    process = await asyncio.create_subprocess_exec(
        *("env", f"TMPDIR={scratch}", *command("ingot.serve.registry.compiling", source, device)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # with the compilers that it starts
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        reading = asyncio.create_task(process.stdout.read())
        async for line in process.stderr:
            tell(line.decode(errors="replace").strip().removeprefix("ingot: "))
        return await reading, await process.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise


def _path(answer: bytes, code: int, source: str) -> str:
    try:
        outcome = msgspec.json.decode(answer, type=Outcome)
    except msgspec.MsgspecError as error:
        raise CompileError(
            f"the process that compiles {source} {end_of(code)}",
            hint=f"Compile it by hand to see more: ingot compile {source}",
        ) from error
    if outcome.fault is not None:
        raise outcome.fault.error()
    return outcome.path


def main() -> None:
    """The process: the model and the device are its arguments, and stdout gets the Outcome. What it
    and the C++ compiler write on the way lies in a folder that its parent removes."""
    tie_to_parent()
    outcome = _outcome(*sys.argv[1:3])
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


def _outcome(source: str, device: str) -> Outcome:
    from ingot.opening import artifact_path

    try:
        return Outcome(path=str(artifact_path(source, device)))
    except IngotError as error:
        return Outcome(fault=Fault.of(error))
    except Exception as error:
        return Outcome(fault=Fault.of(InternalError(describe(error))))
