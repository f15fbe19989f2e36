"""`ModelSettings`: how a model is served."""

from __future__ import annotations

from msgspec import Struct

from ingot.errors import UsageError
from ingot.runtime.config import EngineConfig

_RANGES = {
    **dict.fromkeys(("context", "seats", "threads", "max_waiting"), (1, 2**31 - 1)),
    "kv_bytes": (1, 2**63 - 1),
    "seed": (0, 2**64 - 1),
    "priority": (-(2**31), 2**31 - 1),
    "max_sessions": (0, 2**31 - 1),
    "session_bytes": (1, 2**63 - 1),
    "prompt_cache_bytes": (1, 2**63 - 1),
}


class ModelSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of a model and its engine. None means what is usual.

    device       "cpu", "cuda", "cuda:1" or "auto"
    context      the most tokens of a sequence; None: the artifact's limit
    seats        the most sequences in a step; None: the artifact's limit
    kv_bytes     memory for keys and values; None: what full use can need, and at most half of the
                 memory that is free
    threads      the most threads of a step; None: one per usable processor
    max_waiting  the most sequences in the engine's queue
    seed         seeds the draws of requests that have no seed of their own
    priority     where memory is short, an idle model of a larger number is unloaded first
    keep_alive   seconds that the model stays loaded without a request; None: until memory is short
    speculative  "ngram": compute guesses of the tokens to come, where that pays; None: off
    num_speculative_tokens
                 the most tokens of a guess
    stream_interval
                 seconds that tokens of a stream wait to be sent together, where a step takes less
                 than a quarter of that; the first token and the end never wait
    max_sessions the most sessions that clients keep
    session_bytes
                 the most bytes of their states; None: no bound
    session_idle seconds that a session is kept without a request; 0: no bound
    prompt_cache a folder where prefixes of prompts are kept; None: none are
    prompt_cache_bytes
                 the most bytes of its files; None: 10 GB
    watchdog     seconds without a step, although there are requests, after which an engine process
                 is killed and started again; None: 60

    Raises UsageError that names the field.
    """

    device: str = "auto"
    context: int | None = None
    seats: int | None = None
    kv_bytes: int | None = None
    threads: int | None = None
    max_waiting: int | None = None
    seed: int = 0
    priority: int = 0
    keep_alive: float | None = None
    stream_interval: float = 0.03
    watchdog: float | None = None
    speculative: str | None = None
    num_speculative_tokens: int | None = None
    max_sessions: int = 256
    session_bytes: int | None = None
    session_idle: float = 1800.0
    prompt_cache: str | None = None
    prompt_cache_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise UsageError(
                    f"{name} is {value!r:.80}", hint=f"{name} must be in [{low}, {high}]."
                )
        if self.keep_alive is not None and not 0 <= self.keep_alive < 10**9:
            raise UsageError(
                f"keep_alive is {self.keep_alive}", hint="keep_alive is 0 seconds or more."
            )
        if not 0 <= self.stream_interval <= 60:
            raise UsageError(
                f"stream_interval is {self.stream_interval}",
                hint="stream_interval is 0 to 60 seconds.",
            )
        if not 0 <= self.session_idle < 10**9:
            raise UsageError(
                f"session_idle is {self.session_idle}", hint="session_idle is 0 seconds or more."
            )
        if self.watchdog is not None and not 1 <= self.watchdog < 10**9:
            raise UsageError(f"watchdog is {self.watchdog}", hint="watchdog is 1 second or more.")
        self.switches()

    def switches(self) -> EngineConfig:
        """The engine's switches. Raises UsageError for a value out of range."""
        return EngineConfig(
            max_num_seqs=self.seats,
            max_waiting=self.max_waiting,
            speculative=self.speculative,
            num_speculative_tokens=self.num_speculative_tokens,
            prompt_cache=self.prompt_cache,
            prompt_cache_bytes=self.prompt_cache_bytes,
        )

    @property
    def identity(self) -> tuple[str, int | None, int]:
        """Settings that outputs can depend on."""
        return self.device, self.context, self.seed
