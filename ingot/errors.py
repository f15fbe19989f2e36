"""Typed errors: what was found, what is supported, what to do next.

Every error that a user can cause derives from `IngotError` and carries the exit code of the
command line. `InternalError` marks our own faults.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any, NoReturn


class IngotError(Exception):
    """Base of every error that ingot raises on purpose.

    Args:
        found: what was found, in one sentence.
        hint: what is supported and what to do next; printed on a line of its own.
    """

    exit_code = 1

    def __init__(self, found: str, *, hint: str = "") -> None:
        super().__init__(found if not hint else f"{found}\n{hint}")
        self.found = found
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # As it is, whatever arguments its type takes: other processes send it back by pickle.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UsageError(IngotError):
    """An option or argument that cannot be used as given."""

    exit_code = 2


class CompileError(IngotError):
    """Something that stops a compile."""

    exit_code = 2


class ModelDirError(CompileError):
    """A model directory that is missing, unreadable or incomplete."""


class ConfigError(ModelDirError):
    """A `config.json` with an unknown key, a wrong type or contradictory values."""


class ContradictionError(ConfigError):
    """Values of a `config.json` that cannot be together, although each could be."""


class UnsupportedModelError(ModelDirError):
    """An architecture or a feature of one that no family here builds."""


class CheckpointError(ModelDirError):
    """Tensors that are missing, left over, misshapen, truncated or not finite."""


class TokenizerError(ModelDirError):
    """A tokenizer that is missing, unreadable or larger than the vocabulary."""


class HubError(ModelDirError):
    """A model that the hub does not hand out."""


class ModelNotFoundError(HubError):
    """A name or a revision that the hub does not know, or does not show to this account."""


class GatedModelError(HubError):
    """A model that needs a token, of an account with access."""


class HubUnreachableError(HubError):
    """A model that is not in the hub's cache, while the hub cannot be asked."""


class ExportError(CompileError):
    """A model whose graph could not be captured."""


class PassError(CompileError):
    """A pass that matched too rarely, broke an invariant or moved the numbers."""

    def __init__(self, pass_name: str, found: str, *, hint: str = "") -> None:
        super().__init__(f"pass {pass_name}: {found}", hint=hint)
        self.pass_name = pass_name


class CodegenError(CompileError):
    """A plan that a code generator cannot turn into code."""


class ToolchainError(CompileError):
    """A compiler that is missing or failed."""


class ArtifactError(IngotError):
    """An artifact that is damaged, incomplete or of another format version."""

    exit_code = 3


class StateFileError(ArtifactError):
    """A file of states that is damaged, of another version, or of another artifact."""


class IncompatibleHostError(ArtifactError):
    """An artifact that has no target for this host."""


class VerificationError(IngotError):
    """Hashes or golden outputs that do not match."""

    exit_code = 4


class QualityError(VerificationError):
    """A number format that costs a model more than is allowed."""


class GoldenError(UsageError):
    """Golden outputs that are malformed, or of another version, model or number format."""


class RequestError(UsageError, ValueError):
    """A prompt, a message or a sampling parameter that cannot be served as given."""


class SessionError(RequestError):
    """A session that cannot do what it is asked for now: it is closed, or does something else."""


class UnknownSessionError(SessionError):
    """An id under which this asker has no session."""


class GrammarError(RequestError):
    """A schema, regex, choice or grammar that no output can be held to as given."""


class ResourceError(IngotError):
    """Out of memory or disk."""

    exit_code = 5


class DeviceError(IngotError):
    """A GPU that failed or was lost. What ran on it is over; the process can go on without it."""

    exit_code = 5


class EngineDeadError(IngotError):
    """An engine that ended or hangs. What it was computing is lost; it may be started again."""


class QueueFullError(ResourceError):
    """More requests wait than the engine's configuration allows; try again later."""


class SessionLimitError(ResourceError):
    """More sessions, or more of their bytes, than a server keeps."""


class DrainingError(IngotError):
    """A server that takes no new requests, because it ends."""


class UnknownModelError(UsageError):
    """A name under which no model is registered."""


class PoisonedRequestError(RequestError):
    """A request that has killed engines. Sent again, it is refused again."""


class InternalError(IngotError):
    """A fault of ingot itself; please report it."""


class ProtocolError(InternalError):
    """Bytes from another process that are no message, or not the one that comes next."""


# What a check does with a fault: it raises it, or notes it, and the check goes on to the next.
OnFault = Callable[[IngotError], None]


def raise_fault(error: IngotError) -> NoReturn:
    """Ends a check at its first fault."""
    raise error


class Noting:
    """A context that hands the error that ends it to a function; if that returns, all goes on
    behind the context."""

    def __init__(self, on_fault: OnFault) -> None:
        self._on_fault = on_fault

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, IngotError):
            return False
        self._on_fault(error)
        return True


def describe(error: BaseException) -> str:
    """Type and message of any exception, even of one whose `__str__` raises."""
    try:
        text = str(error)
    except BaseException:
        text = "(it has no message that can be read)"
    return f"{type(error).__name__}: {text:.200}"


def listed(names: list[str], most: int = 8) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
