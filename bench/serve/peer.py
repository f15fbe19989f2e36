"""Another server beside ours, on the same weights and the same requests."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.figure import Figure
from bench.serve.running import Command, ingot_serve, serving
from bench.serve.sides import ANSWER, MODEL_LEN, NAME, PROMPT, asks, over_http, tried
from ingot.cli.load.server import Server

CLIENTS = (1, 8, 32)
EACH = 2  # requests of a client in a round


class Size(NamedTuple):
    """Tokens of a request."""

    prompt: int
    answer: int


SIZE = Size(PROMPT, ANSWER)


class Round(NamedTuple):
    """What one server did: tokens a second of all clients, and the median seconds to the first.

    Both are of the requests that were answered; `errors` are those of the others.
    """

    rate: float
    ttft: float
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """A server of OpenAI's API with `/health`, that calls its model `m`."""

    name: str
    command: Command

    @staticmethod
    def of(text: str) -> Peer:
        """Of NAME=COMMAND, in which `{port}` stands for a port. Raises ArgumentTypeError."""
        name, _, command = text.partition("=")
        if not name or "{port}" not in command:
            raise argparse.ArgumentTypeError(f"{text!r} is no NAME=COMMAND with {{port}} in it")
        words = shlex.split(command)
        return Peer(name, lambda port: [word.replace("{port}", str(port)) for word in words])


def beside(
    path: Path, peer: Peer, rounds: int, clients: Sequence[int] = CLIENTS, size: Size = SIZE
) -> Iterator[Figure]:
    """Both servers stay open, and get the same requests one after the other."""
    ours = ingot_serve([f"{NAME}={path}"], "--max-model-len", str(MODEL_LEN))
    with serving(ours) as mine, serving(peer.command) as other:
        # The field is llama.cpp's; others ignore it.
        servers = mine.server(NAME), other.server(NAME, cache_prompt=False)
        for server in servers:
            over_http(server, asks(0, max(clients), 4))
        for count in clients:
            pairs = [
                tuple(_round(server, count, seed, size) for server in servers)
                for seed in range(1, rounds + 1)
            ]
            yield from _figures(peer.name, count, pairs)


def _round(server: Server, clients: int, seed: int, size: Size = SIZE) -> Round:
    asked = asks(1000 * clients + seed, EACH * clients, size.answer, size.prompt)
    outcomes, seconds = tried(server, asked, clients)
    errors = tuple(outcome.error for outcome in outcomes if outcome.error)
    answered = [outcome for outcome in outcomes if not outcome.error]
    if not answered:
        raise RuntimeError(f"port {server.address.port} answers no request: {errors[0]}")
    tokens, wanted = sum(each.output_tokens for each in answered), size.answer * len(answered)
    if tokens != wanted:
        raise RuntimeError(f"port {server.address.port} made {tokens} tokens of {wanted}")
    return Round(tokens / seconds, median(each.ttft for each in answered), errors)


def _figures(peer: str, clients: int, pairs: list[tuple[Round, ...]]) -> Iterator[Figure]:
    """Medians of both, and how many times as good ours is: medians of the rounds' ratios."""
    ours, theirs = zip(*pairs, strict=True)
    name = f"{clients} client{'s' if clients > 1 else ''}"
    rates = [median(each.rate for each in side) for side in (ours, theirs)]
    times = [1e3 * median(each.ttft for each in side) for side in (ours, theirs)]
    more = median(mine.rate / other.rate for mine, other in pairs)
    sooner = median(other.ttft / mine.ttft for mine, other in pairs)
    note = f"ours {rates[0]:.0f}, {peer} {rates[1]:.0f} tok/s"
    yield Figure(f"{name}, rate to {peer}", more, "x", note=note)
    note = f"ours {times[0]:.1f}, {peer} {times[1]:.1f} ms"
    yield Figure(f"{name}, first token to {peer}", sooner, "x", note=f"sooner; {note}")
    yield _failures(name, peer, ours, theirs)


def _failures(name: str, peer: str, ours: Sequence[Round], theirs: Sequence[Round]) -> Figure:
    """How many requests failed on either side, and why the most did."""
    mine, others = ([error for each in side for error in each.errors] for side in (ours, theirs))
    errors = mine + others
    note = f"ours {len(mine)}, {peer} {len(others)}"
    if errors:
        note += f"; {max(errors, key=errors.count)}"
    return Figure(f"{name}, requests that failed", len(errors), "", 0, note=note)
