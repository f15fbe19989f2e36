"""Measures speculation: the same requests with and without drafts, in turns.

    python -m bench.speculation --artifact build/bench/qwen3-0.6b.ingot
                                [--bundled build/shakespeare.ingot] [--tokens N] [--rounds N]
                                [--streams N] [--only TEXT ...] [--json FILE]

`ingot bench --speculative` measures any artifact with tokens that are drawn. Here its answers are
texts of this repository, in the tokens of the bundled model; they are given in the same way. With
`--bundled` that model also writes its own text.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers

import ingot
from bench.arguments import at_least
from bench.figure import Figure, machine, show
from ingot.artifact.reader import Artifact
from ingot.cli.bench.speculation import BenchText, SpeculationRunner, SpeculationTurns, steered
from ingot.errors import IngotError
from ingot.runtime.devices.cpu import CpuExecutor

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "golden" / "models" / "shakespeare" / "tokenizer.json"
PROMPT_TOKENS = 512
REPETITIVE, OTHER = 1.8, 0.97  # at least that many times as fast
SPECULATIVE = ingot.EngineConfig(speculative="ngram")


def code_edit() -> tuple[str, str]:
    """A file, and the same with other names."""
    code = (ROOT / "ingot" / "runtime" / "stop_strings.py").read_text()
    edited = code.replace("_held", "_pending").replace("found", "matched").replace("piece", "part")
    return code, edited


def summary() -> tuple[str, str]:
    """The beginning of a page, and the first sentence of each of its paragraphs."""
    page = (ROOT / "docs" / "quickstart.md").read_text()
    paragraphs = [p for p in page.split("\n\n") if p[:1].isalpha()][:6]
    return "\n\n".join(paragraphs), " ".join(re.split(r"(?<=[.:]) ", p)[0] for p in paragraphs)


def records() -> list[dict[str, Any]]:
    names = ("Viola", "Orsino", "Olivia", "Feste", "Antonio", "Maria", "Toby", "Malvolio")
    return [
        {"name": name, "place": f"Illyria {3 * n + 1}", "age": 20 + 7 * n % 31, "lines": 91 * n + 5}
        for n, name in enumerate(names * 3)
    ]


def json_edit() -> tuple[str, str]:
    """A document, and the same with one field of each record changed."""
    rows = records()
    return json.dumps(rows), json.dumps([{**row, "age": row["age"] + 1} for row in rows])


def json_of_table() -> tuple[str, str]:
    """Lines of a table, and the same as JSON: the keys repeat, and the values are new."""
    rows = records()
    return "\n".join(", ".join(map(str, row.values())) for row in rows), json.dumps(rows, indent=1)


def prose() -> tuple[str, str]:
    """A page, and how it goes on."""
    words = (ROOT / "docs" / "numerics.md").read_text().split(" ")
    half = len(words) // 2
    return " ".join(words[:half]), " ".join(words[half:])


# Beside each text, how many times as fast it should be.
TEXTS: dict[str, tuple[Callable[[], tuple[str, str]], float]] = {
    "code edit": (code_edit, REPETITIVE),
    "summary": (summary, REPETITIVE),
    "JSON edit": (json_edit, REPETITIVE),
    "JSON of a table": (json_of_table, OTHER),
    "other prose": (prose, OTHER),
}


def given_texts(names: list[str], tokens: int, streams: int) -> Iterator[tuple[BenchText, float]]:
    """Answers that are given, each with its limit."""
    for name in names:
        text, limit = TEXTS[name]
        prompt, answer = map(encode, text())
        requests = [
            (prompt[n : PROMPT_TOKENS + n], steered(answer[n : tokens + n])) for n in range(streams)
        ]
        yield BenchText(f"{name}, {streams} at once", requests), limit


def own_texts(tokens: int, streams: int) -> Iterator[tuple[BenchText, float]]:
    """What the bundled model writes by itself."""
    prompts = ["ROMEO:", "First Citizen:\nWe", "KING HENRY:\nMy lord", "JULIET:\nO"]
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        requests = [
            (
                encode(prompts[n % len(prompts)]),
                ingot.SamplingParams(
                    temperature=temperature, seed=n, max_tokens=tokens, ignore_eos=True
                ),
            )
            for n in range(streams)
        ]
        yield BenchText(f"own text, {name}, {streams} at once", requests), OTHER


def encode(text: str) -> list[int]:
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def compared(
    path: Path, texts: Iterator[tuple[BenchText, float]], tokens: int, rounds: int
) -> Iterator[Figure]:
    """Each text on an artifact."""
    longest = PROMPT_TOKENS + tokens + 1
    with closing(CpuExecutor(Artifact.open(path, device="cpu"), max_model_len=longest)) as executor:
        runner = SpeculationRunner(executor, SPECULATIVE, rounds)
        for text, limit in texts:
            found = runner.run(text)
            yield Figure(text.name, found.ratio, "x", limit, "higher", note(found))


def note(found: SpeculationTurns) -> str:
    accepted = 100 * (found.acceptance_rate or 0.0)
    return (
        f"{found.plain_rate:.1f} -> {found.drafted_rate:.1f} tok/s; "
        f"{found.num_draft_tokens / len(found.drafted):.0f} tokens drafted, {accepted:.0f} % "
        f"accepted; {found.tokens_per_step:.2f} tokens a step"
    )


def main() -> int:
    """Prints the table; 1 if a limit is missed, 2 for an artifact that cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.speculation")
    parser.add_argument("--artifact", type=Path, help="an artifact of any shape")
    parser.add_argument("--bundled", type=Path, help="the artifact of the bundled model")
    parser.add_argument("--tokens", type=at_least(2), default=192, help="of an answer")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="of both turns")
    parser.add_argument("--streams", type=at_least(1), default=1, help="requests at once")
    parser.add_argument("--only", nargs="+", choices=TEXTS, default=[*TEXTS], help="some texts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    print(f"{machine()}\n")
    found: list[Iterator[Figure]] = []
    if args.artifact:
        texts = given_texts(args.only, args.tokens, args.streams)
        found.append(compared(args.artifact, texts, args.tokens, args.rounds))
    if args.bundled:
        own = own_texts(args.tokens, args.streams)
        found.append(compared(args.bundled, own, args.tokens, args.rounds))
    try:
        return show(chain.from_iterable(found), args.json)
    except IngotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
