"""llama.cpp's server beside ours, on the same weights and the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.figure import Figure
from bench.serve.running import Command, ingot_serve, serving
from bench.serve.sides import ANSWER, MODEL_LEN, NAME, PROMPT, asks, over_http
from ingot.artifact.host import usable_processors
from ingot.cli.load.server import Server

CLIENTS = (1, 8, 32)
EACH = 2  # requests of a client in a round


class Round(NamedTuple):
    """What one server did: tokens a second of all clients, and the median seconds to the first."""

    rate: float
    ttft: float


def llama_server(binary: Path, gguf: Path) -> Command:
    """llama.cpp's server with a seat for each client, on all processors."""
    most, threads = max(CLIENTS), str(usable_processors())
    return lambda port: [
        str(binary), "--model", str(gguf), "--host", "127.0.0.1", "--port", str(port),
        "--parallel", str(most), "--ctx-size", str(most * (PROMPT + ANSWER + 16)),
        "--threads", threads, "--threads-batch", threads,
    ]  # fmt: skip


def beside_llama(path: Path, binary: Path, gguf: Path, rounds: int) -> Iterator[Figure]:
    """Both servers stay open, and get the same requests one after the other."""
    ours = ingot_serve([f"{NAME}={path}"], "--max-model-len", str(MODEL_LEN))
    with serving(ours) as mine, serving(llama_server(binary, gguf)) as other:
        servers = mine.server(NAME), other.server(NAME, cache_prompt=False)
        for server in servers:
            over_http(server, asks(0, max(CLIENTS), 4))
        for clients in CLIENTS:
            pairs = [
                tuple(_round(server, clients, seed) for server in servers)
                for seed in range(1, rounds + 1)
            ]
            yield from _figures(clients, pairs)


def _round(server: Server, clients: int, seed: int) -> Round:
    asked = asks(1000 * clients + seed, EACH * clients)
    outcomes, seconds = over_http(server, asked, clients)
    tokens = sum(outcome.output_tokens for outcome in outcomes)
    wanted = sum(ask.output_tokens for ask in asked)
    if tokens != wanted:
        raise RuntimeError(f"port {server.address.port} made {tokens} tokens of {wanted}")
    return Round(tokens / seconds, median(outcome.ttft for outcome in outcomes))


def _figures(clients: int, pairs: list[tuple[Round, ...]]) -> Iterator[Figure]:
    """Medians of both, and how many times as good ours is: medians of the rounds' ratios."""
    ours, theirs = zip(*pairs, strict=True)
    name = f"{clients} client{'s' if clients > 1 else ''}"
    rates = [median(each.rate for each in side) for side in (ours, theirs)]
    times = [1e3 * median(each.ttft for each in side) for side in (ours, theirs)]
    more = median(mine.rate / other.rate for mine, other in pairs)
    sooner = median(other.ttft / mine.ttft for mine, other in pairs)
    note = f"ours {rates[0]:.0f}, llama.cpp {rates[1]:.0f} tok/s"
    yield Figure(f"{name}, rate to llama.cpp", more, "x", note=note)
    note = f"ours {times[0]:.1f}, llama.cpp {times[1]:.1f} ms"
    yield Figure(f"{name}, first token to llama.cpp", sooner, "x", note=f"sooner; {note}")
