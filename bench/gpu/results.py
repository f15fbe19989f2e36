"""What a run found, part by part, as the JSON file that is written after each of them."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
OK, FAILED, NOT_RUN = "ok", "failed", "not run"
ERROR_LINES = 24  # of an error or a log
CALLS = 5  # that are named with an error
NOT_REACHED = "the run ended before it"

Values = dict[str, Any]


@dataclass(slots=True)
class Outcome:
    """A part as it ended. Figures that it found before it failed stay."""

    name: str
    status: str = NOT_RUN
    seconds: float = 0.0
    figures: Values = field(default_factory=dict)
    error: str = NOT_REACHED


@dataclass(slots=True)
class Report:
    """The figures of a part that runs, in a file: what is noted is kept, whatever comes after."""

    file: Path
    figures: Values = field(default_factory=dict)

    def note(self, **figures: Any) -> None:
        """Adds figures; those of a name that is there already, where both are mappings."""
        for name, value in figures.items():
            old = self.figures.get(name)
            both = isinstance(old, dict) and isinstance(value, Mapping)
            self.figures[name] = {**old, **value} if both else value  # type: ignore[dict-item]
        self.save("")

    def save(self, status: str, error: str = "") -> None:
        write_json(self.file, {"status": status, "figures": self.figures, "error": error})


@dataclass(slots=True)
class Faults:
    """What went wrong in the trials of a part. Each is caught, and the next one begins."""

    found: list[str] = field(default_factory=list)

    @contextmanager
    def of(self, trial: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.add(trial, f"{type(error).__name__}: {error}")

    def add(self, trial: str, what: object) -> None:
        """Adds a fault; nothing is none."""
        if what:
            self.found.append(f"{trial}: {what}")

    def raise_found(self) -> None:
        """Raises RuntimeError where there was any."""
        if self.found:
            raise RuntimeError("\n".join(self.found))


def read_report(file: Path) -> Values:
    """What a part has left in its file; nothing where it did not come that far."""
    if not file.exists():
        return {"status": "", "figures": {}, "error": ""}
    found: Values = json.loads(file.read_text())
    return found


def results(date: str, half: int, outcomes: Iterable[Outcome]) -> Values:
    """The content of gpu-results.json."""
    parts = [asdict(outcome) for outcome in outcomes]
    found: Values = next((p["figures"] for p in parts if p["name"] == "environment"), {})
    return {
        "schema": SCHEMA,
        "date": date,
        "half": half,
        "card": found.get("card", {}),
        "versions": found.get("versions", {}),
        "parts": parts,
    }


def write_json(file: Path, values: Values) -> None:
    """Writes a file that is whole at any time."""
    beside = file.with_name(f"{file.name}.{os.getpid()}.part")
    beside.write_text(json.dumps(values, indent=1, default=str) + "\n")
    beside.replace(file)


def last_lines(text: str, count: int = ERROR_LINES) -> str:
    return "\n".join(text.rstrip().splitlines()[-count:])


def error_text(error: BaseException) -> str:
    """An error, and the calls that led to it."""
    calls = traceback.extract_tb(error.__traceback__)[-CALLS:]
    places = [f"{Path(each.filename).name}:{each.lineno} in {each.name}" for each in calls]
    lines = "".join(traceback.format_exception_only(error)).rstrip().splitlines()
    return "\n".join((*places, *lines[:ERROR_LINES]))
