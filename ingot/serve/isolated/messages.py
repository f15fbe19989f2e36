"""Messages between an engine process and its front: fixed types of plain data."""

from __future__ import annotations

from msgspec import Struct

from ingot import errors
from ingot.artifact.reader import Check
from ingot.errors import IngotError, InternalError
from ingot.runtime.metrics import EngineCounters
from ingot.serve.engine import Job, ModelFacts, Progress
from ingot.serve.settings import ModelSettings


class Open(Struct, frozen=True, tag=True, array_like=True):
    """The first message to the process: the artifact to open. Answered by Ready or Refused."""

    path: str
    settings: ModelSettings
    check: Check = "fast"


class Ask(Struct, frozen=True, tag=True, array_like=True):
    """Runs a job under a number that was never used before."""

    number: int
    job: Job


class Drop(Struct, frozen=True, tag=True, array_like=True):
    """Aborts a job."""

    number: int


class Ping(Struct, frozen=True, tag=True, array_like=True):
    """Is answered by a Pong between two steps."""

    number: int


def encodable(text: str) -> str:
    """A text that a message can hold: names of files need not be UTF-8."""
    return text.encode(errors="backslashreplace").decode()


class Fault(Struct, frozen=True, array_like=True):
    """An error by the name of its type."""

    kind: str
    found: str
    hint: str

    @classmethod
    def of(cls, error: IngotError) -> Fault:
        return cls(type(error).__name__, encodable(error.found), encodable(error.hint))

    def error(self) -> IngotError:
        """The error; an InternalError where its type is none of `ingot.errors`."""
        kind = getattr(errors, self.kind, InternalError)
        usual = isinstance(kind, type) and issubclass(kind, IngotError)
        if not usual or kind.__init__ is not IngotError.__init__:
            kind = InternalError
        return kind(self.found, hint=self.hint)


class Ready(Struct, frozen=True, tag=True, array_like=True):
    """The model is open, and has reproduced a golden prompt."""

    facts: ModelFacts


class Refused(Struct, frozen=True, tag=True, array_like=True):
    """The model cannot be opened."""

    fault: Fault


class Told(Struct, frozen=True, tag=True, array_like=True):
    """Progress of all jobs in a step, by their numbers."""

    progress: list[tuple[int, Progress]]
    faults: list[tuple[int, Fault]]


class Pong(Struct, frozen=True, tag=True, array_like=True):
    """Counters of the engine between two steps."""

    number: int
    counters: EngineCounters


class Logged(Struct, frozen=True, tag=True, array_like=True):
    """A record of the process's log."""

    level: int
    text: str


ToEngine = Open | Ask | Drop | Ping
FromEngine = Ready | Refused | Told | Pong | Logged
