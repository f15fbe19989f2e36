"""Puts a million small requests to a server, and then looks for what it has not given back.

    python -m bench.many ARTIFACT [--requests 1000000] [--json FILE]

Each asks for one token after a prompt of a few. Prompts come again, so an answer that differs from
the first to the same prompt shows. Memory counts from the moment when the server is ready, before
anybody has asked: what it grows by in all must be small.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import uvloop

from bench.figure import Figure, machine, show
from bench.serve.held import AT_ONCE, Held, side_by_side
from bench.serve.running import Running, ingot_serve, rss_mb, serving
from bench.serve.sides import NAME, asks
from ingot.cli.load.server import ConnectionPool

REQUESTS = 1_000_000
PROMPTS = 10_000  # that are not the same
PROMPT = 8  # tokens
GROWTH_MB = 100.0  # of all processes


@dataclass(slots=True)
class Answers:
    """What came back."""

    errors: list[str] = field(default_factory=list)
    different: int = 0
    texts: dict[int, str] = field(default_factory=dict)


def many(artifact: Path, requests: int) -> Iterator[Figure]:
    """All figures, once all requests were answered."""
    with serving(ingot_serve([f"{NAME}={artifact}"])) as running:
        held = Held(running, running.server(NAME))
        first, begin = _memory(held), perf_counter()
        uvloop.run(_ask(running, AT_ONCE))  # opens what stays open
        before = held.now()
        found = uvloop.run(_ask(running, requests))
        seconds = perf_counter() - begin
        yield Figure("requests", requests, "", note=f"{requests / seconds:.0f} a second")
        note = found.errors[0] if found.errors else ""
        yield Figure("errors", len(found.errors), "", 0.0, note=note)
        yield Figure("answers that differ", found.different, "", 0.0)
        yield from held.gauges("afterwards")
        yield from held.more(before)
        last = _memory(held)
        note = ", ".join(f"{name} {first[name]:.1f} to {last[name]:.1f}" for name in last)
        grown = sum(last.values()) - sum(first.values())
        yield Figure("memory, more", grown, "MB", GROWTH_MB, note=note)


def _memory(held: Held) -> dict[str, float]:
    return {name: rss_mb(pid) for name, pid in held.processes().items()}


async def _ask(running: Running, requests: int) -> Answers:
    """Asks so often, and compares the answers to the same prompt."""
    found, prompts = Answers(), asks(0, min(requests, PROMPTS), 1, PROMPT)
    with closing(ConnectionPool(running.server(NAME))) as pool:

        async def ask(number: int) -> bool:
            which = number % len(prompts)
            outcome = await pool.ask(prompts[which])
            if outcome.error:
                found.errors.append(outcome.error)
                return True
            found.different += found.texts.setdefault(which, outcome.text) != outcome.text
            return False

        await side_by_side(range(requests), ask)
    return found


def main(argv: list[str] | None = None) -> int:
    """Prints the table; 1 if a limit is missed."""
    doc = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m bench.many", description=doc)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args(argv)
    print(f"{machine()}\n")
    return show(many(args.artifact, args.requests), args.json)


if __name__ == "__main__":
    sys.exit(main())
