"""Measures what states that are kept save: second turns, state files, and streams side by side.

    python -m bench.sessions ARTIFACT [--context 4096] [--streams 64] [--rounds 5] [--json FILE]

The second turn of a chat has its first one as a prefix. Its time to the first token is measured
with what is cached of that, and with nothing, under a salt of its own; both must answer alike. A
state file is written and read again while the system's cache of files has it. Streams are fed a
token each, in steps of all of them and of one.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import ingot
from bench.arguments import at_least
from bench.figure import Figure, machine, show
from ingot import SamplingParams, TokensPrompt

ANSWER, QUESTION = 16, 16  # tokens of the first turn's answer, and of what is asked behind it
STEPS = 16  # of streams, in a round
GREEDY = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, detokenize=False)
FIRST = SamplingParams(temperature=0, max_tokens=1, logprobs=5, detokenize=False)


def main() -> int:
    """Prints the table; 1 if a limit is missed."""
    args = _parser().parse_args()
    with ingot.LLM(args.artifact) as llm:
        print(f"{machine()}, {args.artifact.name}\n")
        return show(measure(llm, args), args.json)


def measure(llm: ingot.LLM, args: argparse.Namespace) -> Iterator[Figure]:
    """All figures, as they are measured."""
    draw = random.Random(0)
    yield second_turn(llm, args.context, args.rounds, draw)
    yield from state_files(llm, args.context, args.rounds, draw)
    yield streams(llm, args.streams, args.rounds, draw)


def tokens(count: int, draw: random.Random) -> list[int]:
    return [draw.randrange(1, 500) for _ in range(count)]


def second_turn(llm: ingot.LLM, context: int, rounds: int, draw: random.Random) -> Figure:
    """How much sooner its first token comes. Raises RuntimeError where it is another token."""
    known, anew = list[float](), list[float]()
    for number in range(rounds):
        first = tokens(context, draw)
        (answer,) = llm.generate([TokensPrompt(prompt_token_ids=first)], GREEDY, use_tqdm=False)
        turn = [*first, *answer.outputs[0].token_ids, *tokens(QUESTION, draw)]
        soon, late = (first_token(llm, turn, salt) for salt in ("", f"round {number}"))
        if soon[1] != late[1]:
            raise RuntimeError("a second turn answers otherwise than what is computed anew")
        known.append(soon[0])
        anew.append(late[0])
    note = f"{median(known) * 1e3:.1f} ms, and {median(anew) * 1e3:.0f} anew"
    name = f"second turn behind {context} tokens"
    return Figure(name, median(anew) / median(known), "x", 30, "higher", note)


def first_token(llm: ingot.LLM, token_ids: list[int], salt: str) -> tuple[float, object]:
    """The seconds until it is there, and its log probabilities."""
    prompt = TokensPrompt(prompt_token_ids=token_ids, cache_salt=salt)
    began = time.perf_counter()
    (output,) = llm.generate([prompt], FIRST, use_tqdm=False)
    return time.perf_counter() - began, output.outputs[0].logprobs


def state_files(llm: ingot.LLM, context: int, rounds: int, draw: random.Random) -> Iterator[Figure]:
    """Milliseconds of writing a session's file, and of having the session again."""
    saves, loads = list[float](), list[float]()
    with TemporaryDirectory() as folder, llm.open_session(tokens(context, draw)) as session:
        file = Path(folder) / "session.state"
        for _ in range(rounds + 1):
            began = time.perf_counter()
            nbytes = session.save(file)
            saves.append(time.perf_counter() - began)
            began = time.perf_counter()
            with llm.load_session(file):
                loads.append(time.perf_counter() - began)
    note = f"{nbytes / 1e6:.1f} MB"
    yield Figure("save a session", median(saves[1:]) * 1e3, "ms", 30, note=note)
    yield Figure("restore a session", median(loads[1:]) * 1e3, "ms", 20, note=note)


def streams(llm: ingot.LLM, count: int, rounds: int, draw: random.Random) -> Figure:
    """Tokens a second of so many streams, beside those of one."""
    found: dict[int, list[float]] = {1: [], count: []}
    for _ in range(rounds):
        for number, speeds in found.items():
            with llm.open_streams(number) as together:
                together.step(tokens(number, draw))
                began = time.perf_counter()
                for _ in range(STEPS):
                    together.step(tokens(number, draw))
                speeds.append(STEPS * number / (time.perf_counter() - began))
    one, many = (median(speeds) for speeds in found.values())
    note = f"{many:.0f} tokens/s, and {one:.1f}"
    return Figure(f"{count} streams over one", many / one, "x", 10, "higher", note)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--context", type=at_least(1), default=4096, help="tokens of a session")
    parser.add_argument("--streams", type=at_least(2), default=64)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
