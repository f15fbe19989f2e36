"""`ingot bench serve`: how fast a server answers, under the load that is asked for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ingot.cli.arguments import Argument, ArgumentGroup, Arguments
from ingot.cli.numbers import human_int, number_from, whole_number
from ingot.cli.output import json_text, print_json, show
from ingot.errors import UsageError

URL = "http://127.0.0.1:8000"

METRICS = ("ttft", "tpot", "itl", "e2el")


def _metrics(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not set(names) <= {*METRICS}:
        raise argparse.ArgumentTypeError(f"{text!r}: name some of {','.join(METRICS)}")
    return names


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        points = tuple(float(word) for word in text.split(","))
    except ValueError:
        points = (-1.0,)
    if not all(0 <= point <= 100 for point in points):
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers from 0 to 100, such as 50,99")
    return points


def _object(text: str) -> dict[str, Any]:
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no object of JSON: {error}") from None


ARGUMENTS: Arguments = (
    Argument("--base-url URL", f"the server (default: {URL})", default=URL),
    Argument(
        "--backend",
        "completions, or conversations of one message (default: openai)",
        choices=("openai", "openai-chat"),
        default="openai",
    ),
    Argument("--endpoint PATH", "default: /v1/completions or /v1/chat/completions"),
    Argument("--model NAME", "default: the first that the server lists"),
    Argument("--insecure", "take any certificate of the server"),
    ArgumentGroup(
        "load",
        "A key is taken from OPENAI_API_KEY.",
        (
            Argument("--num-prompts N", "requests (default: 1000)", human_int, default=1000),
            Argument(
                "--request-rate R",
                "requests a second; inf sends all at once (default: inf)",
                number_from(0, above=True, finite=False),
                default=float("inf"),
            ),
            Argument(
                "--burstiness B",
                "1: as in a Poisson process; less: in bursts; more: evenly (default: 1)",
                number_from(0, above=True),
                default=1.0,
            ),
            Argument("--max-concurrency N", "requests at once (default: no limit)", human_int),
            Argument(
                "--num-warmups N",
                "requests before, unmeasured (default: 1)",
                whole_number,
                default=1,
            ),
        ),
    ),
    ArgumentGroup(
        "requests",
        "Prompts are random tokens where the server has /tokenize, and random words elsewhere.",
        (
            Argument(
                "--random-input-len N",
                "tokens of a prompt (default: 1024)",
                human_int,
                default=1024,
            ),
            Argument(
                "--random-output-len N", "tokens to make (default: 128)", human_int, default=128
            ),
            Argument(
                "--random-prefix-len N",
                "tokens before them that all prompts share (default: 0)",
                whole_number,
                default=0,
            ),
            Argument(
                "--random-range-ratio R",
                "draw lengths from 1 - R to 1 + R times these (default: 0)",
                number_from(0, below=1),
                default=0.0,
            ),
            Argument(
                "--seed N", "of prompts, lengths and moments (default: 0)", whole_number, default=0
            ),
            Argument("--ignore-eos", "make all tokens, whatever the model says"),
            Argument("--temperature T", "default: the server's", number_from(0)),
            Argument(
                "--extra-body JSON", "fields of every request, as an object", _object, default={}
            ),
        ),
    ),
    ArgumentGroup(
        "result",
        "Latencies are in milliseconds.",
        (
            Argument(
                "--percentile-metrics LIST",
                "what the table shows (default: ttft,tpot,itl,e2el)",
                _metrics,
                default=METRICS,
            ),
            Argument(
                "--metric-percentiles LIST",
                "such as 50,90,99 (default: 99)",
                _percentiles,
                default=(99.0,),
            ),
            Argument(
                "--goodput LIMIT",
                "count requests within limits: ttft:200 tpot:50 e2el:1000",
                nargs="+",
                default=[],
            ),
            Argument("--save-result FILE", "write the result as JSON", Path),
            Argument("--save-detailed", "the result also has every request"),
        ),
    ),
)


def main(args: argparse.Namespace) -> int:
    """Sends requests to a server of OpenAI's API, reads their streams and says how long tokens
    took. Options, result and the meaning of every metric are those of `vllm bench serve`, so
    that figures of other servers compare."""
    import asyncio

    from ingot.cli.load.demand import parse_goodput
    from ingot.cli.load.measure import detailed, measure
    from ingot.cli.load.metrics import text

    if args.save_detailed and not (args.save_result or args.json):
        raise UsageError("--save-detailed needs --save-result FILE or --json")
    found, outcomes = asyncio.run(measure(args, parse_goodput(args.goodput)))
    if args.save_detailed:
        found |= detailed(outcomes)
    if args.save_result:
        args.save_result.write_text(json_text(found) + "\n", encoding="utf-8")
    if args.json:
        print_json(found)
    else:
        show(text(found, args.percentile_metrics))
    return 0 if found["completed"] else 1
