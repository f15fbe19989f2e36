"""How many answers in a form end by themselves, and whether a validator of its own takes them.

    python -m tools.real.forms [--artifact FILE] [--each N] [--tokens N]

Without an artifact, SmolLM2 is fetched and compiled. Answers to a hundred schemas are drawn. One
that ended is held against its schema by `jsonschema`; one that was cut is first brought to an end,
by the shortest tokens that the grammar allows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ingot
from ingot.runtime.llm import LLM
from ingot.runtime.output import CompletionOutput
from ingot.runtime.params import SamplingParams
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.structured.guide import Guide
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.tokenizer import Tokenizer
from tests.runtime.structured.schemas import SCHEMAS
from tests.runtime.structured.wide_schemas import WIDE
from tools.real.checks import ROOT
from tools.real.files import SMOLLM2, fetch

ALL = (*SCHEMAS, *WIDE)
PROMPT = "Answer in JSON.\n"
MOST_ADDED = 1500  # tokens that bring an answer to its end
CLOSING = ('"', "}", "]", ",", ":", "0", "e")  # what ends a value soonest, in this order


@dataclass
class Found:
    """Answers that ended, those that were cut, how many of these were brought to an end, and what
    is wrong with all that have one."""

    ended: int = 0
    cut: int = 0
    brought: int = 0
    faults: list[str] = field(default_factory=list)


def answers(llm: LLM, schemas: Sequence[Any], each: int, max_tokens: int) -> Found:
    """Draws `each` answers to every schema, and judges them."""
    asked = [
        SamplingParams(
            structured_outputs={"json": schema}, n=each, seed=seed, max_tokens=max_tokens
        )
        for seed, schema in enumerate(schemas)
    ]
    outputs = llm.generate([PROMPT] * len(asked), asked, use_tqdm=False)
    found, endings = Found(), Endings(llm.get_tokenizer())
    for schema, output in zip(schemas, outputs, strict=True):
        for completion in output.outputs:
            _judge(found, endings, schema, completion)
    return found


def _judge(found: Found, endings: Endings, schema: Any, completion: CompletionOutput) -> None:
    text: str | None = completion.text
    if completion.finish_reason == "stop":
        found.ended += 1
    elif completion.finish_reason == "length":
        found.cut += 1
        text = endings.ended(schema, list(completion.token_ids))
        found.brought += text is not None
    else:
        found.faults.append(f"it ended by {completion.finish_reason}")
    if text is None:
        return
    found.faults += [f"{fault} in {text!r:.200}" for fault in faults(schema, text)]


def faults(schema: Any, text: str) -> list[str]:
    """What is wrong with a text by an independent validator."""
    from jsonschema import Draft202012Validator

    judge = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    try:
        value = json.loads(text)
    except ValueError as error:
        return [f"no JSON: {error}"]
    return [error.message[:200] for error in judge.iter_errors(value)]


class Endings:
    """Brings answers to an end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        size = tokenizer.backend.get_vocab_size()
        assert tokenizer.eos_token_id is not None, "a model whose answers end has such a token"
        self._end = tokenizer.eos_token_id
        self._grammars = GrammarCompiler(lambda: tokenizer, size, [self._end])
        one = {tokenizer.decode([token], False): token for token in range(size)}
        self._closing = [one[text] for text in CLOSING if text in one]

    def ended(self, schema: Any, tokens: list[int]) -> str | None:
        """The text with what ends it soon; None where that is not found."""
        guide = Guide(self._grammars.compile(StructuredOutputsParams(json=schema)))
        for _ in range(MOST_ADDED):
            complete = guide.ends(tokens, 0) or guide.allowed(tokens, 0).has(self._end)
            if guide.error is not None:
                raise guide.error  # the tokens do not follow from the schema
            if complete:
                return self._tokenizer.decode(tokens)
            allowed = guide.allowed(tokens, 0)
            first = (token for token in self._closing if allowed.has(token))
            only = [] if allowed.only is None else allowed.only.tolist()
            tokens = [*tokens, next(first, only[0] if only else self._any(allowed.never))]
        return None

    def _any(self, never: Any) -> int:
        banned = set(never.tolist())
        return next(token for token in range(len(banned) + 1) if token not in banned)


@contextmanager
def smollm2() -> Iterator[Path]:
    """An artifact of SmolLM2, which is fetched if it is not there."""
    file = fetch(SMOLLM2, ROOT / "build" / "real")
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        out = Path(folder) / "smollm2.ingot"
        ingot.compile(file, out)
        yield out


def main() -> int:
    """Prints the figures; 1 if an answer is not valid."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.real.forms")
    parser.add_argument("--artifact", type=Path, help="of another model than SmolLM2")
    parser.add_argument("--each", type=int, default=20, help="answers to a schema (default: 20)")
    parser.add_argument("--tokens", type=int, default=300, help="of an answer (default: 300)")
    args = parser.parse_args()
    if args.artifact:
        return _measure(args.artifact, args.each, args.tokens)
    with smollm2() as artifact:
        return _measure(artifact, args.each, args.tokens)


def _measure(artifact: Path, each: int, tokens: int) -> int:
    with LLM(artifact, max_model_len=1024) as llm:
        found = answers(llm, ALL, each, tokens)
    for fault in found.faults:
        print(f"error: {fault}", file=sys.stderr)
    print(
        f"{len(ALL)} schemas: {found.ended} answers ended; {found.cut} were cut after {tokens} "
        f"tokens, and {found.brought} of them brought to an end; {len(found.faults)} faults"
    )
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
