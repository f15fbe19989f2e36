"""What can be switched while the engine runs. No choice here changes any output."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ingot.errors import UsageError
from ingot.runtime.field_checks import plain

_FLAGS = {"prefix_cache", "overlap"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The engine's switches; replaced as a whole between two steps. None: the artifact's limit.

    prefix_cache            keep the pages of computed tokens, and use them for equal prefixes
    logits_cache_bytes      memory for the last logits of whole prompts; 0: none are kept
    chunk_tokens            the most tokens of one prompt that a step computes
    overlap                 prepare the next step while the kernels run the current one; None:
                            where a processor is left for it. Where the kernels use all of them it
                            takes more time from them than it saves
    max_num_seqs            the most sequences in a step
    max_num_batched_tokens  the most tokens in a step
    max_waiting             the most sequences in the queue, more are refused; None: any number

    Raises UsageError that names the field, its value and the range.
    """

    prefix_cache: bool = True
    logits_cache_bytes: int = 0
    chunk_tokens: int | None = None
    overlap: bool | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = plain(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            if field.name in _FLAGS:
                fits, wanted = isinstance(value, bool), "True or False"
            else:
                low = 0 if field.name == "logits_cache_bytes" else 1
                fits = type(value) is int and low <= value < 2**63
                wanted = f"an integer in [{low}, 2**63)"
            if not fits and not (value is None and field.default is None):
                raise UsageError(
                    f"{field.name} is {value!r:.80}", hint=f"{field.name} must be {wanted}."
                )


def engine_config(given: object) -> EngineConfig:
    """The switches that were given, the defaults for None. Raises UsageError for anything else."""
    if given is None:
        return EngineConfig()
    if not isinstance(given, EngineConfig):
        raise UsageError(f"config is {given!r:.80}", hint="config must be an EngineConfig or None.")
    return given
