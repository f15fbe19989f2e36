"""Runs the tests of the core that can see what has changed: `make affected [SINCE=main]`.

    python -m tools.affected [--since main] [--seconds 120] [--list] [PYTEST'S ARGUMENTS ...]

What has changed are the files that differ from where this branch left `main`, committed or not.
The nearest tests run, as many as take `--seconds` together; 0 stands for all of them. What a test
sees is said by `tools/affected/reads.py`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support import times
from tests.support.kept_builds import kept_folder
from tools.affected.choose import Affected, affected, estimate, fitting
from tools.affected.reads import Repository

ROOT = Path(__file__).resolve().parents[2]
MOST_PROCESSES = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what will run and how long that takes, and runs it; returns pytest's exit code, and 2
    where git knows no such revision."""
    args, further = _parser().parse_known_args(argv)
    try:
        changed = changed_files(ROOT, args.since)
    except subprocess.CalledProcessError as error:
        print(f"affected: git knows no {args.since!r}: {error.stderr.strip()}", file=sys.stderr)
        return 2
    repository = Repository(ROOT, {*_git(ROOT, "ls-files", *TRACKED_AND_NEW), *changed})
    found = affected(repository.reads, changed, times.read(kept_folder())) if changed else []
    processes = min(os.cpu_count() or 1, MOST_PROCESSES)
    chosen, left = fitting(found, processes, args.seconds or float("inf"))
    print("\n".join(told(changed, args.since, chosen, left, processes)), flush=True)
    if args.list or not chosen:
        return 0
    spread = ["-n", str(processes), "--dist", "worksteal"]
    command = [sys.executable, "-m", "pytest", "-q", *spread, "-m", times.CORE, *further]
    # Of chosen files, none may be of the core.
    code = subprocess.call([*command, *(each.path for each in chosen)], cwd=ROOT)
    return 0 if code == 5 else code


TRACKED_AND_NEW = ("--cached", "--others", "--exclude-standard")


def changed_files(root: Path, since: str) -> list[str]:
    """The files that differ from where this branch left `since`, and those that git does not know.

    Raises CalledProcessError where there is no such revision.
    """
    differing = _git(root, "diff", "--name-only", "--no-renames", "--merge-base", since, "--")
    return sorted({*differing, *_git(root, "ls-files", "--others", "--exclude-standard")})


def told(
    changed: Sequence[str],
    since: str,
    chosen: Sequence[Affected],
    left: Sequence[Affected],
    processes: int,
) -> list[str]:
    """The lines that say what has changed, and what runs for it."""
    if not changed:
        return [f"nothing has changed since {since}"]
    lines = [f"changed since {since}: {', '.join(changed)}"]
    if not chosen:
        return [*lines, "no test reads it"]
    lines += [_row(each) for each in chosen]
    seconds = estimate(chosen, processes)
    lines.append(f"{_files(chosen)}, about {_time(seconds)} on {processes} processors")
    if not all(each.is_known for each in chosen):
        lines.append("?: has not run here yet")
    if left:
        rest = _time(estimate(left, processes))
        lines.append(f"left out for their time: {_files(left)}, {rest} more; SECONDS=0 runs all")
    return lines


def _files(found: Sequence[Affected]) -> str:
    return f"{len(found)} file{'s' if len(found) != 1 else ''} of tests"


def _row(each: Affected) -> str:
    seconds = f"{each.seconds:.1f} s" if each.is_known else "?"
    return f"{seconds:>9}  {each.path}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"


def _git(root: Path, *arguments: str) -> list[str]:
    command = ["git", "-c", "core.quotePath=off", *arguments]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.affected", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--since", default="main", help="the revision that this branch left")
    parser.add_argument("--seconds", type=float, default=120, help="how long it may take; 0: all")
    parser.add_argument("--list", action="store_true", help="only say what would run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
