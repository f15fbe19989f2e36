"""From requests about whole texts to the jobs of an engine. It tokenises: not for an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from ingot.artifact.pooler import DOES, Pooler, Task
from ingot.errors import RequestError
from ingot.runtime.encoder import EncodedText
from ingot.runtime.texts import behind, count_unpooled, prompt_tokens
from ingot.runtime.unique import unique_id
from ingot.serve.engine import Engine, Job, ModelFacts
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.prompts import MAX_TOKENIZED_CHARS

# Texts of a job. A request of many is cut into jobs, so that others come in between.
TEXTS_OF_A_JOB = 32

Spelled = str | tuple[str, str] | list[int]


class TextOrder(Struct, frozen=True, kw_only=True):
    """Texts in tokens, in the jobs that read them."""

    jobs: list[Job]
    lengths: list[int]

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(self.lengths)


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
    *,
    param: str,
    prompt: str = "",
    of_tokens: bool = False,
    most: int | None = None,
    priority: int = 0,
    fingerprint: bytes = b"",
) -> TextOrder:
    """The order for some texts.

    Args:
        param: the field of the request that has them, for errors.
        prompt: what stands before each of them that is no tokens.
        of_tokens: a row is wanted of each token, and not of the text.
        most: the tokens that longer texts are cut to; -1: those that the model takes; None: longer
            texts are refused.

    Raises FieldError.
    """
    pooler = engine.facts.pooler
    assert pooler is not None, "the model reads texts"
    longest = min(pooler.max_tokens, engine.facts.max_model_len)
    room = longest if most in (None, -1) else min(most or 0, longest)
    if most == 0:
        raise FieldError("truncate_prompt_tokens", "texts are to be cut to no token")
    before = prompt_tokens(engine.tokenizer, pooler, prompt)
    reader = _Reader(engine, prompt, before, room, cut=most is not None)
    found = [
        reader.encoded(text, f"{param}[{i}]" if len(texts) > 1 else param)
        for i, text in enumerate(texts)
    ]
    request_id = unique_id()
    jobs = [
        Job(
            id=f"{request_id}-{begin}",
            token_ids=[],
            priority=priority,
            texts=[[*text.tokens] for text in part],
            seconds=[text.second for text in part],
            unpooled=[text.unpooled for text in part],
            of_tokens=of_tokens,
            stream=False,
            fingerprint=fingerprint,
        )
        for begin in range(0, len(found), TEXTS_OF_A_JOB)
        for part in [found[begin : begin + TEXTS_OF_A_JOB]]
    ]
    return TextOrder(jobs=jobs, lengths=[len(text.tokens) for text in found])


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns the texts of a request into tokens.

    Attributes:
        prompt: what stands before each text; `before` are its tokens that have no part in rows.
        room: the most tokens of a text.
        cut: longer texts are cut, and not refused.
    """

    engine: Engine
    prompt: str
    before: list[int]
    room: int
    cut: bool

    def encoded(self, text: Spelled, param: str) -> EncodedText:
        """The tokens of a text. Raises FieldError."""
        if isinstance(text, list):
            found = EncodedText(self._given(text, param))
        else:
            tokens, second = self._spelled(text, param)
            found = EncodedText(tokens, second, count_unpooled(tokens, self.before))
        count = len(found.tokens)
        if count <= found.unpooled:
            behind_it = " behind its prompt" if found.unpooled else ""
            raise FieldError(
                param, f"{param} has no token{behind_it}", hint="Give a text that is not empty."
            )
        if count > self.room:
            raise FieldError(
                param,
                f"{param} has {count} tokens, and the model takes {self.room}",
                hint="Shorten it, or give truncate_prompt_tokens: -1, which leaves out its end.",
                code="context_length_exceeded",
            )
        return found

    def _given(self, tokens: list[int], param: str) -> list[int]:
        vocab_size = self.engine.facts.vocab_size
        if (largest := max(tokens, default=0)) >= vocab_size:
            raise FieldError(
                param,
                f"{param} has token {largest}",
                hint=f"The vocabulary has the tokens 0 to {vocab_size - 1}.",
            )
        return tokens[: self.room] if self.cut else tokens

    def _spelled(self, text: str | tuple[str, str], param: str) -> tuple[list[int], int]:
        parts = (text,) if isinstance(text, str) else text
        if any(not part for part in parts):
            raise FieldError(param, f"{param} is an empty text", hint="Give one that is not.")
        if sum(map(len, parts)) > MAX_TOKENIZED_CHARS:
            raise FieldError(
                param,
                f"{param} has {sum(map(len, parts))} characters; "
                f"{MAX_TOKENIZED_CHARS} may be given",
            )
        try:
            whole, most = behind(self.prompt, text), self.room if self.cut else None
            return self.engine.tokenizer.encode_texts([whole], most)[0]
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
