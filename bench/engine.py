"""Measures the engine: what the host adds to a step, batching, prefixes and the scheduler.

    python -m bench.engine --artifact build/bench/qwen3-0.6b.ingot --bundled build/shakespeare.ingot
                           [--only NAME ...] [--json FILE]

`--artifact` is of the 0.6B shape, `--bundled` the model in golden/models; what needs the one that
is not given is left out. Every figure stands beside its limit.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import ingot
from bench.figure import Figure, machine, show
from bench.scheduler import sequence_steps_per_second
from ingot.artifact.cost import StepShape
from ingot.artifact.step_cost import step_cost
from ingot.runtime.limits import LimitsMeter

MODEL_LEN = 2048
REQUESTS, STREAMS = 256, 64
PREFIX_TOKENS, SUFFIX_TOKENS = 1024, 32


def host(path: Path) -> Iterator[Figure]:
    """What a decode step takes beyond kernels and sampler, text included."""
    steps, rounds = 60, 7
    with ingot.LLM(path, max_model_len=min(MODEL_LEN, _model_len(path))) as llm:
        for batch, limit in ((1, 150.0), (64, 600.0)):
            rests, samplers, kernels = [], [], []
            for _ in range(rounds):
                requests = [
                    llm.stream([i + 1, 2, 3], _greedy(steps, text=True)) for i in range(batch)
                ]
                for request in requests:
                    next(request)  # the prompts
                before, began = llm.counters(), time.perf_counter()
                for request in requests:
                    for _ in request:
                        pass
                wall, after = time.perf_counter() - began, llm.counters()
                count = after.num_steps - before.num_steps
                kernel = after.kernel_seconds - before.kernel_seconds
                sampler = after.sampler_seconds - before.sampler_seconds
                kernels.append(kernel / count * 1e6)
                samplers.append(sampler / count * 1e6)
                rests.append((wall - kernel - sampler) / count * 1e6)
            # The best round: whatever else the machine does only adds to it.
            note = (
                f"median {statistics.median(rests):.0f}; kernels {min(kernels):.0f} us, "
                f"sampler {min(samplers):.0f} us"
            )
            yield Figure(
                f"host time of a decode step, batch {batch}", min(rests), "us", limit, note=note
            )


def batching(path: Path, rounds: int) -> Iterator[Figure]:
    """64 requests at once against the decode rate of one; the best round of each counts.

    Beside it, what the limits of the machine allow to steps that only decode.
    """
    with ingot.LLM(path, max_model_len=MODEL_LEN) as llm:
        plan, one, many = llm.artifact.plan, [], []
        single, batch = (
            step_cost(plan, StepShape(sequences=count, context=64)) for count in (1, STREAMS)
        )
        with LimitsMeter(llm.artifact, single.weight_bytes) as meter:
            limits = meter.measure(5)
        for _ in range(rounds):
            marks = [time.perf_counter() for _ in llm.stream([7] * 32, _greedy(33))]
            one.append(32 / (marks[-1] - marks[0]))
            prompts = [[i + 1, *range(2, 33)] for i in range(STREAMS)]
            began = time.perf_counter()
            llm.generate(prompts, _greedy(64), use_tqdm=False)
            many.append(STREAMS * 64 / (time.perf_counter() - began))
    rate = max(one)
    yield Figure("decode, one stream", rate, "tok/s")
    total = max(many)
    yield Figure("decode, 64 requests, prompts included", total, "tok/s")
    allowed = STREAMS * limits.seconds(single) / limits.seconds(batch)
    note = f"the limits of this machine allow {allowed:.1f} x"
    yield Figure("64 requests to one stream", total / rate, "x", 10.0, "higher", note)


def prefix(path: Path) -> Iterator[Figure]:
    """The time to the first token behind a long prefix, computed and cached."""
    cold, warm = [], []
    with ingot.LLM(path, max_model_len=MODEL_LEN) as llm:
        for number in range(3):
            stem = [(37 * i + number) % 1000 for i in range(PREFIX_TOKENS)]
            for times, last in ((cold, 1), (warm, 2)):
                prompt = {"prompt_token_ids": stem + [last] * SUFFIX_TOKENS}
                output = llm.generate([prompt], _greedy(1), use_tqdm=False)[0]
                times.append(output.metrics.ttft_seconds)
                assert output.num_cached_tokens == (PREFIX_TOKENS if last == 2 else 0)
    first, again = statistics.median(cold), statistics.median(warm)
    note = f"{PREFIX_TOKENS} + {SUFFIX_TOKENS} tokens"
    yield Figure("first token, prefix computed", first * 1e3, "ms", note=note)
    yield Figure("first token, prefix cached", again * 1e3, "ms", note=note)
    yield Figure("gain of a cached prefix", first / again, "x", 8.0, "higher")


def mixed(path: Path) -> Iterator[Figure]:
    """nano-vllm's benchmark: 256 requests of random lengths, here scaled to the model's length.

    100 to 1024 tokens in and as many out become 50 to 512 where the model ends at 1024.
    """
    rng = random.Random(0)
    most = min(1024, _model_len(path) // 2)
    least = most * 100 // 1024
    prompts = [
        [rng.randrange(1000) for _ in range(rng.randint(least, most))] for _ in range(REQUESTS)
    ]
    params = [
        ingot.SamplingParams(
            temperature=0.6, ignore_eos=True, detokenize=False,
            max_tokens=min(rng.randint(least, most), 2 * most - len(prompt)),
        )
        for prompt in prompts
    ]  # fmt: skip
    free = []
    with ingot.LLM(
        path, max_model_len=2 * most, on_step=lambda c: free.append(c.num_free_pages)
    ) as llm:
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds, counters = time.perf_counter() - began, llm.counters()
    generated = sum(len(output.outputs[0].token_ids) for output in outputs)
    assert generated == sum(p.max_tokens for p in params)
    note = f"{least} to {most} tokens in and out, {seconds:.1f} s"
    yield Figure(f"{REQUESTS} mixed requests", generated / seconds, "tok/s", note=note)
    used = 100 * (1 - min(free) / counters.num_pages)
    mean = 100 * (1 - statistics.mean(free) / counters.num_pages)
    note = f"{mean:.0f} % on average, {counters.num_preemptions} preemptions"
    yield Figure("pages in use, at most", used, "%", note=note)
    host = counters.step_seconds - counters.kernel_seconds - counters.sampler_seconds
    note = f"kernels {100 * counters.kernel_seconds / counters.step_seconds:.0f} %"
    yield Figure(
        "host time beside kernels and sampler", 100 * host / counters.step_seconds, "%", note=note
    )


def scheduler(steps: int) -> Iterator[Figure]:
    """A scheduler without a model: sequences of all lengths, shared prefixes, a full pool."""
    rate, note = sequence_steps_per_second(steps)
    yield Figure(f"scheduler, {steps} steps", rate, "seq-steps/s", 50_000.0, "higher", note)


def _greedy(max_tokens: int, *, text: bool = False) -> ingot.SamplingParams:
    return ingot.SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=text
    )


def _model_len(path: Path) -> int:
    with ingot.LLM(path, max_model_len=64) as llm:
        return llm.artifact.manifest.limits.max_model_len


def main() -> int:
    """Prints the table; 1 if a limit is missed."""
    parser = _parser()
    args = parser.parse_args()
    benches: dict[str, Callable[[], Iterator[Figure]]] = {
        "scheduler": lambda: scheduler(args.steps)
    }
    if args.bundled:
        benches["host"] = lambda: host(args.bundled)
        benches["mixed"] = lambda: mixed(args.bundled)
    if args.artifact:
        benches["batching"] = lambda: batching(args.artifact, args.rounds)
        benches["prefix"] = lambda: prefix(args.artifact)
        benches["host-artifact"] = lambda: host(args.artifact)
    for name in args.only or ():
        if name not in benches:
            parser.error(f"--only {name}: with these artifacts there are {', '.join(benches)}")
    print(f"{machine()}\n")
    found = (benches[name]() for name in args.only or benches)
    return show(chain.from_iterable(found), args.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.engine", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--artifact", type=Path, help="an artifact of the 0.6B shape")
    parser.add_argument("--bundled", type=Path, help="the artifact of the bundled model")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the benchmarks")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the scheduler alone")
    parser.add_argument("--rounds", type=int, default=3, help="of the batching benchmark")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
