"""Measures `ingot serve` beside `LLM` in process and beside other servers, in alternating rounds.

    python -m bench.serve --bundled build/shakespeare.ingot --artifact build/bench/q4.ingot
                          [--peer NAME=COMMAND ...] [--clients N ...] [--tokens PROMPT ANSWER]
                          [--only NAME ...] [--json FILE]

`--artifact` is of the 0.6B shape in int4, and `--bundled` the model in golden/models. What needs
one that is not given is left out. COMMAND serves OpenAI's API on `{port}` with the artifact's
weights, as the model `m`, such as

    llama.cpp=llama-server -m q4.gguf --port {port} --parallel 32 --ctx-size 8192
    vllm=vllm serve MODEL_DIR --served-model-name m --port {port} --max-model-len 512

(bench/peers.py writes GGUF files.) Ours streams no token without a text, so the model for times to
a first token is one of `python -m bench.make_model --words`. Clients, front and engine share the
machine. Every figure stands beside its limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

from bench.figure import Figure, machine, show
from bench.serve.lives import kills, starts
from bench.serve.overload import neighbours, overload
from bench.serve.peer import CLIENTS, SIZE, Peer, Size, beside
from bench.serve.refusals import refusals
from bench.serve.sides import front, rate

Bench = Callable[[int], Iterator[Figure]]


def main(argv: list[str] | None = None) -> int:
    """Prints the table; 1 if a limit is missed."""
    parser = _parser()
    args = parser.parse_args(argv)
    benches = chosen(args)
    unknown = {*(args.only or ())} - {*benches}
    if unknown or not benches:
        parser.error(f"what is given allows {', '.join(benches) or 'nothing'} to be measured")
    print(f"{machine()}\n")
    found = (benches[name](args.rounds) for name in args.only or benches)
    return show(chain.from_iterable(found), args.json)


def chosen(args: argparse.Namespace) -> Mapping[str, Bench]:
    """The benchmarks that can be run with what is given."""
    found: dict[str, Bench] = {}
    if args.bundled:
        found["front"] = partial(front, args.bundled)
        found["overload"] = partial(overload, args.bundled)
        found["refusals"] = partial(refusals, args.bundled)
        found["neighbours"] = partial(neighbours, args.bundled)
    if args.artifact:
        found["rate"] = partial(rate, args.artifact)
        found["start"] = partial(starts, args.artifact)
    if args.artifact and args.bundled:
        found["kill"] = partial(kills, args.artifact, args.bundled)
    if args.artifact:
        for peer in args.peer:
            found[peer.name] = partial(
                beside, args.artifact, peer, clients=args.clients, size=Size(*args.tokens)
            )
    return found


def _parser() -> argparse.ArgumentParser:
    doc = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=doc)
    parser.add_argument("--artifact", type=Path, help="an artifact of the 0.6B shape in int4")
    parser.add_argument("--bundled", type=Path, help="the artifact of the bundled model")
    parser.add_argument(
        "--peer", type=Peer.of, action="append", default=[], metavar="NAME=COMMAND",
        help="another server of the artifact's weights, on {port}",
    )  # fmt: skip
    parser.add_argument(
        "--clients", type=int, nargs="+", default=CLIENTS, metavar="N",
        help="how many ask a peer at once",
    )  # fmt: skip
    parser.add_argument(
        "--tokens", type=int, nargs=2, default=SIZE, metavar=("PROMPT", "ANSWER"),
        help="of a request to a peer",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the benchmarks")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are taken")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
