"""Measures speculation: the same requests with and without drafts, in turns.

    python -m bench.speculation --artifact build/bench/qwen3-0.6b.ingot
                                [--bundled build/shakespeare.ingot] [--tokens N] [--rounds N]
                                [--streams N] [--only TEXT ...] [--json FILE]

Weights of a benchmark are random, and write nothing that anyone would. So on `--artifact` the
answer is given: a logits processor makes its next token the likeliest, in both turns. Steps are
those of the model, and texts those of this repository, in the tokens of the bundled model. With
`--bundled` that model also writes its own text.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import tokenizers

import ingot
from bench.figure import Figure, machine, show
from ingot.runtime.llm import LLM

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "golden" / "models" / "shakespeare" / "tokenizer.json"
PROMPT_TOKENS = 512
REPETITIVE, OTHER = 1.8, 0.97  # at least that many times as fast
SPECULATIVE = ingot.EngineConfig(speculative="ngram")
Request = tuple[list[int], ingot.SamplingParams]


@dataclass(frozen=True)
class Turn:
    """How requests fared: tokens a second after the first, and what became of drafts."""

    rate: float
    num_draft_tokens: int
    num_accepted_tokens: int
    num_steps: int


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


def given_texts(
    path: Path, names: list[str], tokens: int, rounds: int, streams: int
) -> Iterator[Figure]:
    """Answers that are given, on the steps of any model."""
    encode = tokenizers.Tokenizer.from_file(str(TOKENIZER)).encode
    with ingot.LLM(path, max_model_len=PROMPT_TOKENS + tokens + 1) as llm:
        for name in names:
            text, limit = TEXTS[name]
            prompt, answer = (encode(part, add_special_tokens=False).ids for part in text())
            requests = [
                (prompt[n : PROMPT_TOKENS + n], steered(answer[n : tokens + n]))
                for n in range(streams)
            ]
            yield from compared(llm, name, requests, rounds, limit)


def own_texts(path: Path, tokens: int, rounds: int, streams: int) -> Iterator[Figure]:
    """What the bundled model writes by itself."""
    with ingot.LLM(path) as llm:
        prompts = ["ROMEO:", "First Citizen:\nWe", "KING HENRY:\nMy lord", "JULIET:\nO"]
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            params = [
                ingot.SamplingParams(
                    temperature=temperature, seed=n, max_tokens=tokens, ignore_eos=True
                )
                for n in range(streams)
            ]
            ids = [llm.get_tokenizer().encode(prompts[n % 4]) for n in range(streams)]
            pairs = list(zip(ids, params, strict=True))
            yield from compared(llm, f"own text, {name}", pairs, rounds, OTHER)


def steered(answer: list[int]) -> ingot.SamplingParams:
    """Parameters that make the model give this answer."""

    def steer(generated: list[int], logits: Any) -> Any:
        logits[answer[len(generated)]] = 1e4
        return logits

    return ingot.SamplingParams(
        temperature=0, max_tokens=len(answer), ignore_eos=True, detokenize=False,
        logits_processors=[steer],
    )  # fmt: skip


def compared(
    llm: LLM, name: str, requests: list[Request], rounds: int, limit: float
) -> Iterator[Figure]:
    """The same requests in both turns; their outputs must be equal."""
    plain: list[Turn] = []
    drafted: list[Turn] = []
    answers: list[list[list[int]]] = []
    run(llm, [(prompt, replace(params, max_tokens=4)) for prompt, params in requests])
    for config, turns in [(ingot.EngineConfig(), plain), (SPECULATIVE, drafted)] * rounds:
        llm.config = config
        turn, answer = run(llm, requests)
        turns.append(turn)
        answers.append(answer)
    assert all(answer == answers[0] for answer in answers), "drafts have changed an output"
    pairs = list(zip(plain, drafted, strict=True))
    ratio, last = median(with_.rate / without.rate for without, with_ in pairs), drafted[-1]
    tokens = sum(map(len, answers[0]))
    share = 100 * last.num_accepted_tokens / max(last.num_draft_tokens, 1)
    note = (
        f"{median(t.rate for t in plain):.1f} -> {median(t.rate for t in drafted):.1f} "
        f"tok/s; {last.num_draft_tokens} tokens drafted, {share:.0f} % accepted; "
        f"{tokens} tokens in {last.num_steps} steps"
    )
    yield Figure(f"{name}, {len(requests)} at once", ratio, "x", limit, "higher", note)


def run(llm: LLM, requests: list[Request]) -> tuple[Turn, list[list[int]]]:
    """Runs all requests at once."""
    before = llm.counters()
    prompts, params = zip(*requests, strict=True)
    outputs = llm.generate([*prompts], [*params], use_tqdm=False)
    after, metrics = llm.counters(), [output.metrics for output in outputs if output.metrics]
    tokens = [output.outputs[0].token_ids for output in outputs]
    began = max(each.first_token_time or 0.0 for each in metrics)
    ended = max(each.finished_time or 0.0 for each in metrics)
    rate = (sum(map(len, tokens)) - len(tokens)) / (ended - began)
    drafted = after.num_draft_tokens - before.num_draft_tokens
    accepted = after.num_accepted_tokens - before.num_accepted_tokens
    return Turn(rate, drafted, accepted, after.num_steps - before.num_steps), tokens


def main() -> int:
    """Prints the table; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.speculation")
    parser.add_argument("--artifact", type=Path, help="an artifact of any shape")
    parser.add_argument("--bundled", type=Path, help="the artifact of the bundled model")
    parser.add_argument("--tokens", type=int, default=192, help="of an answer")
    parser.add_argument("--rounds", type=int, default=3, help="of both turns")
    parser.add_argument("--streams", type=int, default=1, help="requests at once")
    parser.add_argument("--only", nargs="+", choices=TEXTS, default=[*TEXTS], help="some texts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    print(f"{machine()}\n")
    sizes = args.tokens, args.rounds, args.streams
    found = [given_texts(args.artifact, args.only, *sizes)] if args.artifact else []
    found += [own_texts(args.bundled, *sizes)] if args.bundled else []
    return show(chain.from_iterable(found), args.json)


if __name__ == "__main__":
    sys.exit(main())
