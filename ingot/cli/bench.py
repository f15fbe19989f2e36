"""`ingot bench`: how fast a model runs here, beside the limits of this machine."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from ingot.cli.arguments import MODEL, REVISION, Argument, Arguments
from ingot.cli.numbers import human_int
from ingot.cli.output import print_json, show
from ingot.errors import IncompatibleHostError, UsageError

if TYPE_CHECKING:
    from ingot.artifact.plan import Limits
    from ingot.artifact.reader import Artifact
    from ingot.cli.bench_phases import Phase, PhaseResult


PROMPT, CONTEXT = 512, 512
BATCHES = (16, 64)
BATCH_CONTEXT = 32  # tokens of each sequence of a batch; their prefill is not measured

ARGUMENTS: Arguments = (
    MODEL,
    REVISION,
    Argument(
        "--prompt N", f"tokens of the prompt that is prefilled (default: {PROMPT})", human_int
    ),
    Argument(
        "--context N",
        f"tokens that one sequence has when it decodes (default: {CONTEXT})",
        human_int,
    ),
    Argument(
        "--batch N",
        "sequences that decode at once; may be repeated (default: 16 and 64)",
        human_int,
        action="append",
    ),
    Argument(
        "--rounds N",
        "measure everything N times and take the median (default: 5)",
        human_int,
        default=5,
    ),
    Argument("--threads N", "default: one per processor that this process may use", human_int),
    Argument("--ops", "also print the time of every kernel"),
)


def main(args: argparse.Namespace) -> int:
    """Measures read bandwidth and arithmetic of this machine, then prefill, decode and batched
    decode of a model in the same process. Prints each beside the least time that its bytes and
    operations need on this machine."""
    from ingot.artifact.reader import Artifact
    from ingot.cache import resolve
    from ingot.cli.bench_report import as_object, kernels_text, text
    from ingot.hub import model_path

    artifact = Artifact.open(resolve(model_path(args.model, args.revision)), device="cpu")
    _check_target(artifact)
    results = measure(artifact, args)
    if args.json:
        print_json(as_object(artifact, results))
        return 0
    show(text(artifact, results))
    if args.ops:
        for result in results:
            show(f"\n{kernels_text(artifact.plan, result)}")
    return 0


def _check_target(artifact: Artifact) -> None:
    """Raises IncompatibleHostError for an artifact that no CPU runs."""
    from ingot.artifact.target import kind_of_name

    names = [target.name for target in artifact.manifest.targets]
    if "cpu" not in map(kind_of_name, names):
        raise IncompatibleHostError(
            f"{artifact.path} has no CPU target, only {', '.join(names)}",
            hint="`ingot bench` measures CPUs. To measure GPUs, run bench/gpu_check.sh of ingot's "
            "repository.\nTo add a CPU target, compile the model again: --target NAME,cpu:native",
        )


def measure(artifact: Artifact, args: argparse.Namespace) -> list[PhaseResult]:
    """Runs all phases in one engine. Says on stderr which one it is at."""
    from ingot.artifact.cost import StepShape
    from ingot.artifact.step_cost import step_cost
    from ingot.cli.bench_phases import PhaseRunner
    from ingot.runtime.devices.cpu import CpuExecutor
    from ingot.runtime.limits import LimitsMeter

    plan = artifact.plan
    todo = phases(plan.limits, args)
    longest = max(phase.tokens(args.rounds) for phase in todo)
    executor = CpuExecutor(artifact, max_model_len=longest, num_threads=args.threads)
    nbytes = step_cost(plan, StepShape()).weight_bytes
    results = []
    try:
        with (
            LimitsMeter(artifact, nbytes, executor.num_threads) as meter,
            closing(PhaseRunner(executor, plan, meter, rounds=args.rounds, ops=args.ops)) as runner,
        ):
            for phase in todo:
                print(f"measuring {phase.name}", file=sys.stderr)
                results.append(runner.run(phase))
    finally:
        executor.close()
    return results


def phases(limits: Limits, args: argparse.Namespace) -> list[Phase]:
    """What to measure: what was asked for, or else as much of the defaults as fits the artifact.

    Raises UsageError for a phase that was asked for and does not fit.
    """
    from ingot.cli.bench_phases import decode, prefill

    room = limits.max_model_len
    prompt = args.prompt or max(1, min(PROMPT, room - prefill(0).tokens(args.rounds)))
    context = args.context or max(1, min(CONTEXT, room - decode(1, 0).tokens(args.rounds)))
    batches = args.batch or [n for n in BATCHES if n <= limits.max_num_seqs]
    found = [prefill(prompt), decode(1, context)]
    found += [decode(n, min(BATCH_CONTEXT, context)) for n in batches]
    for phase in found:
        tokens = phase.tokens(args.rounds)
        if tokens > room:
            fits = _what_fits(phase, args.rounds, room)
            raise UsageError(
                f"{phase.name} with {args.rounds} rounds needs sequences of {tokens} tokens",
                hint=f"The artifact was compiled for {room}: {fits}.",
            )
        if phase.sequences > limits.max_num_seqs:
            raise UsageError(
                f"{phase.name}: the artifact was compiled for {limits.max_num_seqs} sequences",
                hint="Pass a smaller --batch, or compile it with a larger --max-num-seqs.",
            )
    return found


def _what_fits(phase: Phase, rounds: int, room: int) -> str:
    """What to change so that a phase needs sequences of at most `room` tokens."""
    fitting = []  # each alone is enough
    longest = room - (phase.tokens(rounds) - phase.prompt_tokens)
    if longest > 0:
        option = "--context" if phase.decodes else "--prompt"
        fitting.append(f"{option} {longest}")
    # A round adds at least one token, so there cannot be more rounds than tokens.
    most = next((n for n in range(min(rounds, room), 0, -1) if phase.tokens(n) <= room), 0)
    if most:
        fitting.append(f"--rounds {most}")
    if fitting:
        return f"pass at most {' or '.join(fitting)}"
    if replace(phase, prompt_tokens=1).tokens(1) <= room:
        return "pass a smaller --context and fewer --rounds"
    return "compile it with a larger --max-model-len"
