"""From requests about whole texts to the jobs of an engine. It tokenises: not for an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ingot.artifact.pooler import Pooler, Task
from ingot.errors import RequestError
from ingot.runtime.unique import unique_id
from ingot.serve.engine import Engine, Job, ModelFacts
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.prompts import MAX_TOKENIZED_CHARS

# Texts of a job. A request of many is cut into jobs, so that others come in between.
TEXTS_OF_A_JOB = 32
DOES = {"embed": "makes vectors of texts", "classify": "scores texts"}

Spelled = str | tuple[str, str] | list[int]


class TextOrder(Struct, frozen=True, kw_only=True):
    """Texts in tokens, in the jobs that read them."""

    jobs: list[Job]
    num_texts: int
    num_tokens: int


def pooler_of(facts: ModelFacts, name: str, *tasks: Task) -> Pooler:
    """What a model makes of texts, which must be one of these. Raises FieldError."""
    pooler = facts.pooler
    if pooler is not None and pooler.task in tasks:
        return pooler
    can = [DOES[pooler.task]] if pooler else []
    can += ["generates text"] if facts.generates else []
    wanted = " or ".join(DOES[task] for task in tasks)
    raise FieldError(
        "model",
        f"the model {name[:80]!r} {' and '.join(can)}",
        hint=f"This needs a model that {wanted}.",
        code="unsupported_task",
    )


def order_of(
    texts: Sequence[Spelled],
    engine: Engine,
    pooler: Pooler,
    *,
    param: str,
    most: int | None = None,
    priority: int = 0,
    fingerprint: bytes = b"",
) -> TextOrder:
    """The order for some texts.

    Args:
        param: the field of the request that has them, for errors.
        most: the tokens that longer texts are cut to; -1: those that the model takes; None: longer
            texts are refused.

    Raises FieldError.
    """
    longest = min(pooler.max_tokens, engine.facts.max_model_len)
    room = longest if most in (None, -1) else min(most or 0, longest)
    if most == 0:
        raise FieldError("truncate_prompt_tokens", "texts are to be cut to no token")
    found = [
        _tokens(
            text, engine, room, f"{param}[{i}]" if len(texts) > 1 else param, cut=most is not None
        )
        for i, text in enumerate(texts)
    ]
    request_id = unique_id()
    jobs = [
        Job(
            id=f"{request_id}-{begin}",
            token_ids=[],
            priority=priority,
            texts=[tokens for tokens, _ in found[begin : begin + TEXTS_OF_A_JOB]],
            seconds=[second for _, second in found[begin : begin + TEXTS_OF_A_JOB]],
            stream=False,
            fingerprint=fingerprint,
        )
        for begin in range(0, len(found), TEXTS_OF_A_JOB)
    ]
    total = sum(len(tokens) for tokens, _ in found)
    return TextOrder(jobs=jobs, num_texts=len(found), num_tokens=total)


def _tokens(
    text: Spelled, engine: Engine, room: int, param: str, *, cut: bool
) -> tuple[list[int], int]:
    """The tokens of a text, at most `room`, and where the second of a pair begins in them."""
    if isinstance(text, list):
        tokens, second = text, 0
        if (largest := max(tokens, default=0)) >= engine.facts.vocab_size:
            raise FieldError(
                param,
                f"{param} has token {largest}",
                hint=f"The vocabulary has the tokens 0 to {engine.facts.vocab_size - 1}.",
            )
        tokens = tokens[:room] if cut else tokens
    else:
        tokens, second = _spelled(text, engine, room, param, cut=cut)
    if not tokens:
        raise FieldError(param, f"{param} has no token", hint="Give a text that is not empty.")
    if len(tokens) > room:
        raise FieldError(
            param,
            f"{param} has {len(tokens)} tokens, and the model takes {room}",
            hint="Shorten it, or give truncate_prompt_tokens: -1, which leaves out its end.",
            code="context_length_exceeded",
        )
    return tokens, second


def _spelled(
    text: str | tuple[str, str], engine: Engine, room: int, param: str, *, cut: bool
) -> tuple[list[int], int]:
    parts = (text,) if isinstance(text, str) else text
    if any(not part for part in parts):
        raise FieldError(param, f"{param} is an empty text", hint="Give one that is not.")
    if sum(map(len, parts)) > MAX_TOKENIZED_CHARS:
        raise FieldError(
            param,
            f"{param} has {sum(map(len, parts))} characters; {MAX_TOKENIZED_CHARS} may be given",
        )
    try:
        return engine.tokenizer.encode_texts([text], room if cut else None)[0]
    except RequestError as error:
        raise FieldError(param, f"{param}: {error.found}", hint=error.hint) from None


def listed(given: Any, param: str, most: int) -> list[Any]:
    """Inputs as a list: one text, tokens of one text, or several of either. Raises FieldError."""
    if isinstance(given, str):
        return [given]
    if given and all(type(each) is int for each in given):
        return [given]
    if len(given) > most:
        raise FieldError(param, f"{param} has {len(given)} texts; at most {most}")
    kinds = {type(each) for each in given}
    if len(kinds) > 1 or kinds == {int}:
        raise FieldError(
            param, f"{param} mixes kinds", hint="Give texts, or a list of tokens for each."
        )
    return [*given]
