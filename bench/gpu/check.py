"""Runs every part in a process of its own, and writes what they found after each of them.

    bench/gpu_check.sh [--artifacts DIR] [--out gpu-results.json] [--half 1|2]

A part that fails, hangs or takes its process down is recorded, and the next one runs. Once the
deadline is reached, the other parts are recorded as not run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.gpu.parts import Part, parts_of
from bench.gpu.places import artifact_path, report_file
from bench.gpu.results import (
    FAILED,
    OK,
    Outcome,
    last_lines,
    read_report,
    results,
    write_json,
)
from bench.gpu.summary import line, table

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 465.0  # of a whole run: 8 minutes, less what starting and ending take
LEAST_SECONDS = 3.0  # no part begins with less than this
ENDING_SECONDS = 5.0  # that the processes of a part have after they are killed

Command = Callable[[Part], list[str]]


@dataclass(frozen=True, slots=True)
class Run:
    """A run of some parts.

    Attributes:
        command: starts a part; it leaves its report in `report_file`.
        seconds: of the whole run.
    """

    parts: tuple[Part, ...]
    work: Path
    given: Path
    out: Path
    command: Command
    seconds: float = SECONDS
    half: int = 0

    def run(self) -> list[Outcome]:
        """Runs all parts; what they found is in `out` after each of them."""
        deadline = time.monotonic() + self.seconds
        date = datetime.now(UTC).date().isoformat()
        outcomes = [Outcome(part.name) for part in self.parts]
        for part, outcome in zip(self.parts, outcomes, strict=True):
            write_json(self.out, results(date, self.half, outcomes))
            self._run(part, outcome, deadline - time.monotonic())
            print(line(outcome), flush=True)
        write_json(self.out, results(date, self.half, outcomes))
        return outcomes

    def _run(self, part: Part, outcome: Outcome, left: float) -> None:
        outcome.error = self._obstacle(part, left)
        if outcome.error:
            return
        file = report_file(self.work, part.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        log, allowed = file.with_suffix(".log"), min(part.seconds, left)
        began = time.monotonic()
        ended = run_process(self.command(part), log, allowed)
        outcome.seconds = round(time.monotonic() - began, 2)
        report = read_report(file)
        outcome.figures = report["figures"]
        outcome.status = OK if ended == 0 and report["status"] == OK else FAILED
        if outcome.status == FAILED:
            how = f"was ended after {allowed:.0f} s" if ended is None else f"ended with {ended}"
            tail = last_lines(log.read_text(errors="replace"))
            outcome.error = report["error"] or f"its process {how}\n{tail}".strip()

    def _obstacle(self, part: Part, left: float) -> str:
        """Why a part cannot run; empty if it can."""
        if left < LEAST_SECONDS:
            return "no time was left"
        missing = [n for n in part.names if not artifact_path(n, self.given, self.work).is_dir()]
        return f"there is no {', '.join(missing)}" if missing and not part.makes else ""


def run_process(command: list[str], log: Path, seconds: float) -> int | None:
    """The exit code of a command; None where it took too long. All that it started ends with it."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # stuck in the driver: it is left behind
        process.wait(ENDING_SECONDS)


def obstacle() -> str:
    """What this machine lacks to check anything; empty where it lacks nothing."""
    try:
        import torch
    except ImportError as error:
        return f"there is no torch here for {sys.executable}: {error}"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} of {sys.executable} sees no NVIDIA GPU"
    lacking = [name for name in REQUIRED if not _is_there(name)]
    return f"{sys.executable} lacks {', '.join(lacking)}; PYTHONPATH may name them" * bool(lacking)


REQUIRED = ("triton", "numpy", "tokenizers", "huggingface_hub", "jinja2", "msgspec", "xxhash")


def _is_there(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def main(argv: list[str] | None = None) -> int:
    """Prints a line a part and a table; 1 where a part failed, 2 where nothing can run."""
    args = _parser().parse_args(argv)
    if lacks := obstacle():
        print(f"error: {lacks}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a part that runs is ended, too
    work = args.work.resolve()
    shutil.rmtree(work / "parts", ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    args.out.resolve().parent.mkdir(parents=True, exist_ok=True)
    given = (args.artifacts or work).resolve()

    def command(part: Part) -> list[str]:
        places = ["--work", str(work), "--artifacts", str(given)]
        return [sys.executable, "-m", "bench.gpu.part", part.name, *places]

    parts, out = parts_of(args.half), args.out.resolve()
    run = Run(parts, work, given, out, command, args.seconds, args.half)
    outcomes = run.run()
    print(f"\n{table(outcomes)}\n{args.out}")
    return int(any(outcome.status == FAILED for outcome in outcomes))


def _parser() -> argparse.ArgumentParser:
    doc = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="bench/gpu_check.sh", description=doc)
    add: Any = parser.add_argument
    add(
        "--artifacts",
        type=Path,
        metavar="DIR",
        help="artifacts that were compiled elsewhere, NAME.ingot; others are compiled here",
    )
    add("--out", type=Path, default=Path("gpu-results.json"), metavar="FILE")
    add(
        "--half",
        type=int,
        choices=(0, 1, 2),
        default=0,
        help="1: all but the 8B model; 2: that one; 0, the default: both, as time allows",
    )
    add("--seconds", type=float, default=SECONDS, help=f"of the whole run ({SECONDS:g})")
    add("--work", type=Path, default=ROOT / "build" / "gpu", help="models, artifacts and logs")
    return parser  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
