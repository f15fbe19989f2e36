"""Entries of a registry, one a model."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field

from msgspec import Struct

from ingot.errors import UsageError
from ingot.serve.engine import Engine, ModelFacts
from ingot.serve.settings import ModelSettings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127})?")

UNLOADED, LOADING, LOADED, UNLOADING, FAILED = (
    "unloaded",
    "loading",
    "loaded",
    "unloading",
    "failed",
)


class ModelStatus(Struct, frozen=True, kw_only=True):
    """A model of a registry at a moment.

    state         unloaded, loading, loaded, unloading or failed; an engine that is started again
                  is loading
    error         why it failed, for administrators: it may name files
    progress      what is being done to load it
    nbytes        memory that it takes, or took when it was last loaded; None: not known yet
    num_leases    who uses it now, or waits until what was loaded before is not used any more
    num_waiting   who waits for it to load
    num_restarts  how often its engine was started again after it died
    is_damaged    it failed since its artifact was changed while it was in use
    load_seconds  that the last load took
    last_used     when its last lease ended, in seconds since 1970
    created       when its artifact was made or, until that is known, when it was registered
    max_model_len the most tokens of a sequence; None: not known yet
    """

    name: str
    state: str
    source: str
    settings: ModelSettings
    aliases: list[str] = []
    pinned: bool = False
    facts: ModelFacts | None = None
    error: str | None = None
    progress: str | None = None
    nbytes: int | None = None
    num_leases: int = 0
    num_waiting: int = 0
    num_restarts: int = 0
    is_damaged: bool = False
    load_seconds: float | None = None
    last_used: float | None = None
    created: int = 0
    max_model_len: int | None = None


class ModelEvent(Struct, frozen=True):
    """Something that happened to a model; `text` says what in words.

    `time` is in seconds since 1970; `seconds` are those that a load has taken, at its end.
    `compile_seconds` are those in which its artifact was found or compiled, where it is not given
    as one. `died` tells that its engine did, and is being started again; `damaged`, that its
    artifact is not as it was written, or does not compute what it was compiled to.
    """

    name: str
    state: str
    text: str
    time: float
    seconds: float | None = None
    compile_seconds: float | None = None
    died: bool = False
    damaged: bool = False


@dataclass(eq=False, slots=True)
class Instance:
    """An engine that is open, and who uses it."""

    nbytes: int
    engine: Engine = field(init=False)
    num_leases: int = 0
    last_used: float = field(default_factory=time.monotonic)
    state: str = LOADED
    expiry: asyncio.TimerHandle | None = None
    unused: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.unused.set()

    def stop_timer(self) -> None:
        """Lets it stay although it is idle."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None


@dataclass(eq=False, slots=True)
class LoadUnderWay:
    """A load that is under way. `done` becomes None, or the error that requests get."""

    done: asyncio.Future[None]
    task: asyncio.Task[None]


@dataclass(eq=False, slots=True)
class Entry:
    """A model under its name.

    New requests go to `instance`. Those that are retired have requests that still run.
    """

    name: str
    source: str
    settings: ModelSettings
    pinned: bool = False
    instance: Instance | None = None
    retired: dict[Instance, asyncio.Task[None]] = field(default_factory=dict)
    loading: LoadUnderWay | None = None
    error: str | None = None
    progress: str | None = None
    nbytes: int | None = None
    num_waiting: int = 0
    num_restarts: int = 0
    is_damaged: bool = False
    load_seconds: float | None = None
    last_used: float | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    max_model_len: int | None = None
    removed: bool = False  # nobody can ask for it any more, and nothing may open an engine for it
    may_heal: bool = False  # whether the next lease may try again after an error
    # Loads, unloads and reloads of a model come one after the other.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def state(self) -> str:
        if self.instance is not None:
            return self.instance.state
        if self.loading is not None:
            return LOADING
        if self.retired:
            return UNLOADING
        return UNLOADED if self.error is None else FAILED

    def status(self, aliases: list[str]) -> ModelStatus:
        instances = [*([self.instance] if self.instance else []), *self.retired]
        facts = self.instance.engine.facts if self.instance else None
        return ModelStatus(
            name=self.name,
            state=self.state,
            source=self.source,
            settings=self.settings,
            aliases=aliases,
            pinned=self.pinned,
            facts=facts,
            error=self.error,
            progress=self.progress,
            nbytes=self.nbytes,
            num_leases=sum(each.num_leases for each in instances),
            num_waiting=self.num_waiting,
            num_restarts=self.num_restarts,
            is_damaged=self.is_damaged,
            load_seconds=self.load_seconds,
            last_used=self.last_used,
            created=facts.created if facts else self.created,
            max_model_len=facts.max_model_len if facts else self.max_model_len,
        )


def check_name(name: object) -> str:
    """A name that a model can have. Raises UsageError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r:.80} is no name for a model",
            hint="Names are letters, digits, '.', '_' and '-', beginning with a letter or a digit, "
            "of at most 128 characters; and two of them with a '/' between.",
        )
    return name


def check_source(source: str) -> None:
    """Raises UsageError for what no message and no answer can hold."""
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{source!r:.200} is not valid UTF-8", hint="Rename the file, or link to it."
        ) from error
