"""Measures how soon schemas as large as they may be are ready, or refused.

    python -m bench.schemas [--rounds N] [--json FILE]

Each kind fills 200 kB. What is refused must be so within 200 ms; what is ready, before the limit of
a compile. Nothing is kept from round to round but the vocabulary of the bundled model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bench.figure import Figure, machine, show
from ingot.errors import GrammarError
from ingot.runtime.structured.compiler import SECONDS, GrammarCompiler
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.tokenizer import Tokenizer

BYTES = 200_000
REFUSED_MS = 200.0
BUNDLED = Path(__file__).resolve().parent.parent / "golden" / "models" / "shakespeare"
Schema = dict[str, Any]


def names(count: int, needed: bool = False) -> Schema:
    found = {f"property_{n}": {"type": "string"} for n in range(count)}
    return {"type": "object", "properties": found, "required": list(found) if needed else []}


def kind(number: int) -> Schema:
    """An alternative that its constant tells."""
    properties = {"kind": {"const": f"k{number}"}, "v": {"type": "integer"}}
    return {"type": "object", "properties": properties, "required": ["kind"]}


def nested(count: int) -> Schema:
    found = names(count // 50)
    for _ in range(25):
        found = {**names(count // 50), "additionalProperties": found}
    return found


def chain(count: int) -> Schema:
    """Definitions of which each refers to the next."""
    parts = {
        f"d{n}": {"properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}, "required": ["x"]}
        for n in range(count)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{count}": {"type": "null"}}}


def recursive(count: int) -> Schema:
    """Definitions that refer to one another in rings."""
    parts = {
        f"n{n}": {
            "type": ["object", "null"],
            "properties": {
                "a": {"$ref": f"#/$defs/n{(7 * n + 1) % count}"},
                "b": {"$ref": f"#/$defs/n{(11 * n + 2) % count}"},
            },
        }
        for n in range(count)
    }
    return {"$ref": "#/$defs/n0", "$defs": parts}


def regexes(count: int) -> Schema:
    patterns = (f"^((a{{1,999}}b?){{1,{n + 100}}}c?)*$" for n in range(count))
    return {"properties": {f"p{n}": {"pattern": each} for n, each in enumerate(patterns)}}


def ranges(count: int) -> Schema:
    items = [{"type": "integer", "minimum": 7 * n, "maximum": 1000007 * n} for n in range(count)]
    return {"type": "array", "prefixItems": items}


def faulty(count: int) -> Schema:
    """A large schema, whose last part cannot be held to."""
    return {"$defs": names(count)["properties"], "prefixItems": [kind(0), {"not": {}}]}


KINDS: Mapping[str, Callable[[int], Schema]] = {
    "an enum of words": lambda n: {"enum": [f"word number {i} of many" for i in range(n)]},
    "an enum of numbers": lambda n: {"enum": list(range(n))},
    "an enum of objects": lambda n: {"enum": [{"id": i, "name": f"n{i}"} for i in range(n)]},
    "a wide object": names,
    "a wide object, all needed": lambda n: names(n, needed=True),
    "objects in objects": nested,
    "a chain of references": chain,
    "references in rings": recursive,
    "anyOf": lambda n: {"anyOf": [kind(i) for i in range(n)]},
    "oneOf": lambda n: {"oneOf": [kind(i) for i in range(n)]},
    "allOf": lambda n: {"allOf": [names(i % 3) for i in range(n)]},
    "patternProperties": lambda n: {"patternProperties": {f"^k{i}$": {} for i in range(n)}},
    "expressions that explode": regexes,
    "ranges of numbers": ranges,
    "a fault at the end": lambda n: faulty(n),
}


def filled(make: Callable[[int], Schema]) -> str:
    """The smallest schema of a kind that has BYTES, or nearly so."""
    least, most = 1, BYTES
    while most - least > max(1, least // 50):
        middle = (least + most) // 2
        if len(_text(make(middle))) < BYTES:
            least = middle
        else:
            most = middle
    return _text(make(least))


def _text(schema: Schema) -> str:
    return json.dumps(schema, separators=(",", ":"))


def figures(rounds: int) -> Iterator[Figure]:
    """The middle and the worst time of each kind."""
    grammars = compiler()
    for name, make in KINDS.items():
        text = filled(make)
        found = [compiled(grammars, text) for _ in range(rounds)]
        times = [1e3 * seconds for seconds, _ in found]
        refused = found[0][1]
        limit = REFUSED_MS if refused else 1e3 * SECONDS
        note = f"worst {max(times):.0f} ms, {len(text) >> 10} kB, {refused or 'ready'}"
        yield Figure(name, median(times), "ms", limit, note=note)


def compiler() -> GrammarCompiler:
    """One that has its vocabulary, of the bundled model."""
    data = (BUNDLED / "tokenizer.json").read_bytes()
    config = json.loads((BUNDLED / "tokenizer_config.json").read_text())
    tokenizer = Tokenizer(data, config, vocab_size=2048)
    found = GrammarCompiler(lambda: tokenizer, 2048, [0])
    found.compile(StructuredOutputsParams(choice=["a"]))
    return found


def compiled(grammars: GrammarCompiler, text: str) -> tuple[float, str]:
    """The seconds until a request with the schema is ready or refused, and why it is refused."""
    grammars.forget()
    begin, refused = perf_counter(), ""
    try:
        grammars.compile(StructuredOutputsParams(json=text))
    except GrammarError as error:
        refused = error.found.removeprefix("no output can be held to this: ")[:60]
    return perf_counter() - begin, refused


def main() -> int:
    """Prints the table; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.schemas", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    print(f"{machine()}\n")
    return show(figures(args.rounds), args.json)


if __name__ == "__main__":
    sys.exit(main())
