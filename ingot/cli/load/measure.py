"""One measurement of a server, from the options of `ingot bench serve` to its result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np

from ingot.cli.load.demand import Demand
from ingot.cli.load.http import Address
from ingot.cli.load.metrics import result
from ingot.cli.load.server import Server, put_load
from ingot.cli.load.stream import RequestOutcome, ServerError
from ingot.errors import IngotError
from ingot.settings import settings


async def measure(
    args: argparse.Namespace, goodput: Mapping[str, float]
) -> tuple[dict[str, Any], list[RequestOutcome]]:
    """The result, and how each request fared.

    Raises UsageError where nothing answers, and IngotError for a server that refuses a request
    before the measurement.
    """
    try:
        server = await _server(args)
        demand = await _demand(args, server)
        await _warm_up(server, demand, args.num_warmups)
    except ServerError as error:
        raise IngotError(f"the server refuses: {error}") from error
    asks = demand.asks()
    print(f"sending {len(asks)} requests to {args.base_url}", file=sys.stderr)
    outcomes, seconds = await put_load(server, asks, demand.arrivals(), args.max_concurrency)
    measured = result(outcomes, seconds, goodput=goodput, percentiles=args.metric_percentiles)
    return _asked(args, server, goodput) | measured, outcomes


def detailed(outcomes: Sequence[RequestOutcome]) -> dict[str, Any]:
    """Every request; times in seconds."""
    return {
        "input_lens": [each.prompt_tokens for each in outcomes],
        "output_lens": [each.output_tokens for each in outcomes],
        "ttfts": [each.ttft for each in outcomes],
        "itls": [each.itl for each in outcomes],
        "start_times": [each.start for each in outcomes],
        "generated_texts": [each.text for each in outcomes],
        "error_texts": [each.error for each in outcomes],
    }


async def _server(args: argparse.Namespace) -> Server:
    """The server, with the model that it serves."""
    key = settings().environ.get("OPENAI_API_KEY")
    extra = {"temperature": args.temperature, "ignore_eos": args.ignore_eos or None}
    server = Server(
        address=Address.of(args.base_url, insecure=args.insecure),
        backend=args.backend,
        endpoint=args.endpoint or "",
        headers={"Authorization": f"Bearer {key}"} if key else {},
        extra={name: v for name, v in extra.items() if v is not None} | args.extra_body,
    )
    return replace(server, model=args.model or await server.first_model())


async def _demand(args: argparse.Namespace, server: Server) -> Demand:
    tokens = args.backend == "openai"
    return Demand(
        num_prompts=args.num_prompts,
        input_len=args.random_input_len,
        output_len=args.random_output_len,
        prefix_len=args.random_prefix_len,
        range_ratio=args.random_range_ratio,
        rate=args.request_rate,
        burstiness=args.burstiness,
        seed=args.seed,
        vocabulary=await server.vocabulary(args.seed) if tokens else (),
    )


async def _warm_up(server: Server, demand: Demand, count: int) -> None:
    """Sends other prompts than those of the measurement. Raises ServerError where one fails."""
    if not count:
        return
    # The same prompts would be in the cache of prefixes.
    first = replace(demand, num_prompts=count, seed=demand.seed + 1).asks()
    outcomes, _ = await put_load(server, first, np.zeros(count), None)
    for outcome in outcomes:
        if outcome.error:
            raise ServerError(outcome.error)


def _asked(
    args: argparse.Namespace, server: Server, goodput: Mapping[str, float]
) -> dict[str, Any]:
    """Options of the load under vLLM's names."""
    rate = args.request_rate
    return {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": args.backend,
        "base_url": args.base_url,
        "model_id": server.model,
        "num_prompts": args.num_prompts,
        "request_rate": "inf" if rate == float("inf") else rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        "random_input_len": args.random_input_len,
        "random_output_len": args.random_output_len,
        "seed": args.seed,
        "goodput": dict(goodput),
    }
