"""The forms in which prompts, parameters and options may be given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np

from ingot.errors import RequestError, UsageError
from ingot.runtime.field_checks import plain
from ingot.runtime.params import SamplingParams


class TextPrompt(TypedDict):
    """A prompt that is a text."""

    prompt: str
    cache_salt: NotRequired[str]
    snapshot_at: NotRequired[list[int]]


class TokensPrompt(TypedDict):
    """A prompt that is tokens; a text beside them is only handed back."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
    snapshot_at: NotRequired[list[int]]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]

_FORMS = (
    'A prompt is a str, a list of token ids, {"prompt": str} or {"prompt_token_ids": [...]}; '
    'a dict may also have "cache_salt": str and "snapshot_at": list of int.'
)
_KEYS = {"prompt", "prompt_token_ids", "cache_salt", "snapshot_at"}
MAX_SNAPSHOTS = 64  # that a request may ask for
_INT_RANGES = {
    "max_model_len": (1, 2**31 - 1, False),
    "kv_cache_bytes": (1, 2**63 - 1, False),
    "num_threads": (1, 1024, False),
    "seed": (0, 2**64 - 1, True),
    "chunk_tokens": (1, 2**31 - 1, False),
}


def integer_option(name: str, value: Any) -> int | None:
    """An option as an int, or None if it was left out. Raises UsageError that names the option."""
    value = plain(value)
    low, high, needed = _INT_RANGES[name]
    if value is None and not needed:
        return None
    if type(value) is not int or not low <= value <= high:
        raise UsageError(
            f"{name} is {value!r:.80}", hint=f"{name} must be an integer in [{low}, {high}]."
        )
    return value


def first_positions(first: Any, sequences: Sequence[Sequence[int]]) -> list[int]:
    """A position of each sequence; by default its first. Raises UsageError for any other."""
    found = [0] * len(sequences) if first is None else [plain(each) for each in first]
    right = [
        type(position) is int and 0 <= position < max(len(tokens), 1)
        for position, tokens in zip(found, sequences, strict=False)
    ]
    if len(found) != len(sequences) or not all(right):
        raise UsageError(
            f"first is {first!r:.80}",
            hint="first must be a position, for several sequences a list with one of each.",
        )
    return found


def list_of_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, (list, tuple)):
        raise RequestError(f"prompts of type {type(prompts).__name__}", hint=_FORMS)
    if prompts and _is_int(prompts[0]):
        return [list(prompts)]
    return list(prompts)


def list_of_params(
    params: SamplingParams | Sequence[SamplingParams] | None,
    count: int,
    default: Callable[[], SamplingParams],
) -> list[SamplingParams]:
    """A SamplingParams for each of `count` prompts; the default one for None.

    They are copies, which nobody else can assign to.
    """
    params = default() if params is None else params
    if isinstance(params, SamplingParams):
        return [params.clone()] * count
    result = list(params) if isinstance(params, (list, tuple)) else []
    if len(result) != count or not all(isinstance(p, SamplingParams) for p in result):
        raise RequestError(
            f"sampling_params is {params!r:.80} for {count} prompts",
            hint="Give one SamplingParams, or a list with one for each prompt.",
        )
    return [each.clone() for each in result]


def list_of_chats(messages: Messages | Sequence[Messages]) -> list[Messages]:
    """One conversation or several, as a list."""
    chats: list[Any] = list(messages) if isinstance(messages, (list, tuple)) else []
    return chats if chats and isinstance(chats[0], (list, tuple)) else [chats]


def prompt_parts(prompt: Prompt) -> tuple[str | None, list[int] | None, bytes]:
    """Text and tokens of a prompt, at least one of which is there, and its salt.

    Only prompts with equal salts share cached prefixes. Raises RequestError.
    """
    if isinstance(prompt, str):
        return prompt, None, b""
    if not isinstance(prompt, Mapping):
        return None, list_of_tokens(prompt), b""
    if set(prompt) - _KEYS or not prompt:
        raise RequestError(f"a prompt with the keys {sorted(map(str, prompt))}", hint=_FORMS)
    text, tokens, salt = map(prompt.get, ("prompt", "prompt_token_ids", "cache_salt"))
    if text is not None and not isinstance(text, str):
        raise RequestError(f"a text of type {type(text).__name__}", hint=_FORMS)
    if tokens is None and text is None:
        raise RequestError("a prompt that is None", hint=_FORMS)
    if salt is not None and not isinstance(salt, str):
        raise RequestError(f"a cache_salt of type {type(salt).__name__}", hint=_FORMS)
    tokens = None if tokens is None else list_of_tokens(tokens)
    return text, tokens, (salt or "").encode("utf-8", "surrogatepass")


def snapshot_positions(prompt: Prompt) -> tuple[int, ...]:
    """Numbers of tokens after which the record of a sequence is kept, as its prompt asks.

    Raises RequestError.
    """
    given: Any = prompt.get("snapshot_at") if isinstance(prompt, Mapping) else None
    found = given.tolist() if hasattr(given, "tolist") else () if given is None else given
    if not isinstance(found, (list, tuple)) or not all(_is_int(p) and p >= 0 for p in found):
        raise RequestError(
            f"snapshot_at is {given!r:.80}",
            hint="snapshot_at is a list of numbers of tokens, each 0 or more.",
        )
    if len(found) > MAX_SNAPSHOTS:
        raise RequestError(
            f"snapshot_at has {len(found)} positions", hint=f"At most {MAX_SNAPSHOTS} are kept."
        )
    return tuple(map(int, found))


def list_of_priorities(priority: int | Sequence[int] | None, count: int) -> list[int]:
    """A priority for each of `count` prompts; None is 0."""
    priority = 0 if priority is None else priority
    result: list[Any] = (
        list(priority) if isinstance(priority, (list, tuple)) else [priority] * count
    )
    if len(result) != count:
        raise RequestError(
            f"{len(result)} priorities for {count} prompts",
            hint="Give one priority, or a list with one for each prompt.",
        )
    return result


def list_of_tokens(tokens: object) -> list[int]:
    """Token ids as a list of int; arrays of integers are fine."""
    items = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if not isinstance(items, (list, tuple)) or not all(_is_int(item) for item in items):
        raise RequestError(f"a prompt of type {type(tokens).__name__}", hint=_FORMS)
    return [int(item) for item in items]


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
