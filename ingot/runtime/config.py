"""The switches of a running engine. None of them changes an output."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from ingot.errors import UsageError
from ingot.runtime.field_checks import plain

SPECULATIVE = ("ngram",)  # the ways to guess
MOST_DRAFTED = 64  # tokens of a guess

_FLAGS = {"prefix_cache", "overlap"}
_DRAFTS = ("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")


class Guesses(NamedTuple):
    """Guesses have `most` tokens at most, where `shortest` to `longest` last tokens are equal."""

    most: int = 5
    shortest: int = 2
    longest: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The engine's switches, replaced as a whole between two steps.

    None means the artifact's limit, unless said otherwise.

    prefix_cache            keep the pages of computed tokens, and use them for equal prefixes
    logits_cache_bytes      memory for the last logits of whole prompts; 0: none are kept
    chunk_tokens            the most tokens of one prompt that a step computes
    overlap                 prepare the next step while the kernels run the current one; None: only
                            if the kernels leave a processor free, as they would be slowed down
                            otherwise
    max_num_seqs            the most sequences in a step
    max_num_batched_tokens  the most tokens in a step
    max_waiting             the most sequences in the queue; more are refused. None: no bound
    speculative             "ngram": guess tokens by what followed the last ones before, and compute
                            guesses beside the known tokens where that pays. None: off
    num_speculative_tokens  the most tokens of a guess; None: 5
    prompt_lookup_max       how many last tokens are compared at most; None: 4
    prompt_lookup_min       how many of them have to be equal; None: 2

    prompt_cache            a folder where prefixes of prompts are kept, and found when the model is
                            opened again; None: they end with it
    prompt_cache_bytes      the most bytes of its files; None: 10 GB

    Raises UsageError that names the field, its value and the range; and for a detail of what is
    off.
    """

    prefix_cache: bool = True
    logits_cache_bytes: int = 0
    chunk_tokens: int | None = None
    overlap: bool | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_waiting: int | None = None
    speculative: str | None = None
    num_speculative_tokens: int | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    prompt_cache: str | None = None
    prompt_cache_bytes: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = plain(getattr(self, field.name))
            value = str(value) if isinstance(value, Path) else value
            object.__setattr__(self, field.name, value)
            fits, wanted = _judge(field.name, value)
            if not fits and not (value is None and field.default is None):
                raise UsageError(
                    f"{field.name} is {value!r:.80}", hint=f"{field.name} must be {wanted}."
                )
            if field.name in _DRAFTS and value is not None and self.speculative is None:
                raise UsageError(
                    f"{field.name} is {value}, and nothing is guessed",
                    hint="It needs speculative='ngram', or --speculative ngram. Or leave it out.",
                )
        if self.prompt_cache_bytes is not None and self.prompt_cache is None:
            raise UsageError(
                f"prompt_cache_bytes is {self.prompt_cache_bytes}, and no prompt_cache is given",
                hint="It needs a folder: prompt_cache, or --prompt-cache. Or leave it out.",
            )
        guesses = self.guesses
        if guesses.shortest > guesses.longest:
            raise UsageError(
                f"prompt_lookup_min is {guesses.shortest}, and prompt_lookup_max is "
                f"{guesses.longest}",
                hint="prompt_lookup_min must not be larger.",
            )

    @property
    def guesses(self) -> Guesses:
        """Limits of the guesses."""
        given = self.num_speculative_tokens, self.prompt_lookup_min, self.prompt_lookup_max
        return Guesses(*(x or default for x, default in zip(given, Guesses(), strict=True)))


def _judge(name: str, value: object) -> tuple[bool, str]:
    """Returns whether a switch can have a value, and which values it takes."""
    if name in _FLAGS:
        return isinstance(value, bool), "True or False"
    if name == "speculative":
        return value in SPECULATIVE, f"{' or '.join(map(repr, SPECULATIVE))} or None"
    if name == "prompt_cache":
        return isinstance(value, str) and bool(value), "the path of a folder, or None"
    low, high = (1, MOST_DRAFTED) if name in _DRAFTS else (name != "logits_cache_bytes", None)
    fits = type(value) is int and low <= value < (2**63 if high is None else high + 1)
    return fits, f"an integer in [{int(low)}, {'2**63)' if high is None else f'{high}]'}"


def engine_config(given: object) -> EngineConfig:
    """The switches that were given, the defaults for None. Raises UsageError for anything else."""
    if given is None:
        return EngineConfig()
    if not isinstance(given, EngineConfig):
        raise UsageError(f"config is {given!r:.80}", hint="config must be an EngineConfig or None.")
    return given
