"""Compares what `ingot bench` measured with a stored baseline, by the share of the machine's limit.

    ingot bench ARTIFACT --json > now.json
    python bench/regress.py now.json --history build/bench/history.json [--accept]

A share of the limit measured in the same run says the same on a slower or busier machine, which
tokens per second do not. One bad run proves nothing: the check fails when a phase was worse in
three runs in a row. `--accept` makes this run the baseline; a history without one begins so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

RUNS_IN_A_ROW = 3
TOLERANCE = 0.05  # of the baseline's share: what runs on a quiet machine differ by
KEPT_RUNS = 50

Shares = dict[str, float]
T = TypeVar("T")


@dataclass
class History:
    """The baseline of one benchmark, and the runs since, oldest first: shares by phase."""

    what: str
    baseline: Shares
    runs: list[Shares] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A phase of the last run; `worse_runs` counts how many in a row were worse, to this one."""

    phase: str
    share: float
    baseline: float
    worse_runs: int

    @property
    def failed(self) -> bool:
        return self.worse_runs >= RUNS_IN_A_ROW


def judge(history: History, tolerance: float = TOLERANCE) -> list[Verdict]:
    """A verdict on every phase of the baseline that the last run measured, too."""
    verdicts = []
    for phase, expected in history.baseline.items():
        shares = [run[phase] for run in history.runs if phase in run]
        if not history.runs or phase not in history.runs[-1]:
            continue
        worse = [share < expected * (1 - tolerance) for share in shares]
        in_a_row = [*worse[::-1], False].index(False)
        verdicts.append(Verdict(phase, shares[-1], expected, in_a_row))
    return verdicts


def what_was_measured(result: dict[str, Any]) -> str:
    """What two runs must agree in to be compared; shares of different kernels are no regression."""
    parts = (result["model"], result["dtype"], result["quantization"], result["target"])
    return f"{' '.join(parts)}, KV {result['kv_dtype']}, {result['limits']['threads']} threads"


def read(path: Path, take: Callable[[Any], T], written_by: str) -> T:
    """What `take` finds in a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not what `written_by` writes.
    """
    try:
        return take(json.loads(path.read_text()))
    except KeyError as error:
        raise ValueError(f"{path} is not what {written_by} writes: {error} is missing") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not what {written_by} writes: {error}") from error


def run_of(result: Any) -> tuple[str, Shares]:
    """What a result of `ingot bench --json` measured, and the shares of its phases."""
    shares = {phase["name"]: float(phase["share"]) for phase in result["phases"]}
    return what_was_measured(result), shares


def history_of(stored: Any) -> History:
    """A history as `record` wrote it."""
    baseline, *runs = (
        {phase: float(share) for phase, share in run.items()}
        for run in (stored["baseline"], *stored["runs"])
    )
    return History(stored["what"], baseline, runs)


def record(path: Path, what: str, shares: Shares, accept: bool) -> History:
    """Adds a run to the history at `path`, and writes it.

    Raises:
        OSError: the history cannot be read or written.
        ValueError: it is none, or is of another benchmark.
    """
    history = History(what, shares)
    if path.exists():
        history = read(path, history_of, "bench/regress.py")
    if history.what != what:
        raise ValueError(f"{path} is a history of {history.what}; this run is of {what}")
    if accept:
        history = History(what, shares)
    history.runs = [*history.runs, shares][-KEPT_RUNS:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(history), indent=1) + "\n")
    return history


def main(argv: list[str] | None = None) -> int:
    """Prints a line a phase; 1 when one was worse in three runs in a row, 2 for wrong input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="what `ingot bench --json` printed")
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--accept", action="store_true", help="make this run the baseline")
    args = parser.parse_args(argv)
    try:
        what, shares = read(args.result, run_of, "`ingot bench --json`")
        history = record(args.history, what, shares, args.accept)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    verdicts = judge(history)
    for verdict in verdicts:
        print(line(verdict))
    return int(any(verdict.failed for verdict in verdicts))


def line(verdict: Verdict) -> str:
    state = "ok"
    if verdict.worse_runs:
        state = f"worse, {verdict.worse_runs} in a row" + (": FAILED" if verdict.failed else "")
    now, before = 100 * verdict.share, 100 * verdict.baseline
    return f"{verdict.phase:<36}{now:6.1f} % of the limit, baseline {before:.1f} %   {state}"


if __name__ == "__main__":
    sys.exit(main())
