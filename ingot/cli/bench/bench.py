"""`ingot bench`: how fast a model runs here, beside the limits of this machine."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from ingot.cli.arguments import MODEL, NUM_SPECULATIVE_TOKENS, REVISION, Argument, Arguments
from ingot.cli.numbers import human_int
from ingot.cli.output import print_json, show
from ingot.errors import IncompatibleHostError, UsageError

if TYPE_CHECKING:
    from ingot.artifact.plan import Limits
    from ingot.artifact.reader import Artifact
    from ingot.cli.bench.phases import Phase, PhaseResult
    from ingot.cli.bench.speculation import SpeculationTurns
    from ingot.runtime.config import EngineConfig
    from ingot.runtime.devices.cpu import CpuExecutor


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
    Argument(
        "--speculative METHOD",
        "ngram: also decode with and without guesses of the tokens to come, in turns, on text that "
        "repeats itself and on other text: one sequence, and as many at once as each --batch says",
        choices=("ngram",),
    ),
    NUM_SPECULATIVE_TOKENS,
)


def main(args: argparse.Namespace) -> int:
    """Measures read bandwidth and arithmetic of this machine, then prefill, decode and batched
    decode of a model in the same process. Prints each beside the least time that its bytes and
    operations need on this machine. With --speculative, also tells what speculation gains."""
    from ingot.artifact.reader import Artifact
    from ingot.cli.bench.report import (
        as_object,
        kernels_text,
        speculation_object,
        speculation_text,
        text,
    )
    from ingot.compiled import resolve
    from ingot.hub.names import model_path

    speculative = _speculative(args)
    artifact = Artifact.open(resolve(model_path(args.model, args.revision)), device="cpu")
    _check_target(artifact)
    results, compared = measure(artifact, args, speculative)
    if args.json:
        found = as_object(artifact, results)
        print_json(found | (speculation_object(speculative, compared) if speculative else {}))
        return 0
    show(text(artifact, results))
    if speculative:
        show(f"\n{speculation_text(speculative, compared)}")
    if args.ops:
        for result in results:
            show(f"\n{kernels_text(artifact.plan, result)}")
    return 0


def _speculative(args: argparse.Namespace) -> EngineConfig | None:
    """The switches of speculation, if it was asked for. Raises UsageError for what cannot be."""
    from ingot.runtime.config import EngineConfig

    config = EngineConfig(
        speculative=args.speculative, num_speculative_tokens=args.num_speculative_tokens
    )
    return config if config.speculative else None


def _check_target(artifact: Artifact) -> None:
    """Raises IncompatibleHostError for an artifact that no CPU runs, and UsageError for one that
    generates nothing."""
    from ingot.artifact.target import kind_of_name

    if artifact.manifest.encodes:
        raise UsageError(
            f"{artifact.path} reads whole texts, and generates none",
            hint="Measure it with `ingot bench embed`.",
        )
    names = [target.name for target in artifact.manifest.targets]
    if "cpu" not in map(kind_of_name, names):
        raise IncompatibleHostError(
            f"{artifact.path} has no CPU target, only {', '.join(names)}",
            hint="`ingot bench` measures CPUs. To measure GPUs, run bench/gpu_check.sh of ingot's "
            "repository.\nTo add a CPU target, compile the model again: --target NAME,cpu:native",
        )


def measure(
    artifact: Artifact, args: argparse.Namespace, speculative: EngineConfig | None = None
) -> tuple[list[PhaseResult], list[SpeculationTurns]]:
    """Runs everything on one executor. Says on stderr what it is at."""
    from ingot.runtime.devices.cpu import CpuExecutor

    plan = artifact.plan
    todo = phases(plan.limits, args)
    longest = max(phase.tokens(args.rounds) for phase in todo)
    context, answer = speculated_tokens(plan.limits, args) if speculative else (0, 0)
    longest = max(longest, context + answer)
    executor = CpuExecutor(artifact, max_model_len=longest, num_threads=args.threads)
    try:
        # Where a step takes no drafts, that is said before anything is measured.
        compared = _compare(executor, speculative, context, args) if speculative else []
        return _run_phases(artifact, executor, todo, args), compared
    finally:
        executor.close()


def _run_phases(
    artifact: Artifact, executor: CpuExecutor, todo: list[Phase], args: argparse.Namespace
) -> list[PhaseResult]:
    from ingot.artifact.cost import StepShape
    from ingot.artifact.step_cost import step_cost
    from ingot.cli.bench.phases import PhaseRunner
    from ingot.runtime.limits import LimitsMeter

    plan, results = artifact.plan, []
    nbytes = step_cost(plan, StepShape()).weight_bytes
    with (
        LimitsMeter(artifact, nbytes, executor.num_threads) as meter,
        closing(PhaseRunner(executor, plan, meter, rounds=args.rounds, ops=args.ops)) as runner,
    ):
        for phase in todo:
            print(f"measuring {phase.name}", file=sys.stderr)
            results.append(runner.run(phase))
    return results


def _compare(
    executor: CpuExecutor, speculative: EngineConfig, context: int, args: argparse.Namespace
) -> list[SpeculationTurns]:
    """One sequence of each text, and as many at once as each --batch says."""
    from ingot.cli.bench.speculation import SpeculationRunner, texts

    runner, compared = SpeculationRunner(executor, speculative, args.rounds), []
    for sequences in dict.fromkeys((1, *(args.batch or ()))):
        for text in texts(executor.vocab_size, context, sequences):
            print(f"measuring speculation, {text.name}", file=sys.stderr)
            compared.append(runner.run(text))
    return compared


def phases(limits: Limits, args: argparse.Namespace) -> list[Phase]:
    """Picks the phases to measure: those asked for, or those defaults that fit the artifact.

    Raises UsageError for a phase that was asked for and does not fit.
    """
    from ingot.cli.bench.phases import decode, prefill

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


def speculated_tokens(limits: Limits, args: argparse.Namespace) -> tuple[int, int]:
    """Tokens of prompt and answer where speculation is measured.

    Raises UsageError where they do not fit.
    """
    from ingot.cli.bench.speculation import ANSWER

    room = limits.max_model_len - ANSWER
    context = args.context or max(1, min(CONTEXT, room))
    if context > room:
        fits = f"pass at most --context {room}" if room > 0 else "compile it with a larger one"
        raise UsageError(
            f"speculation after a context of {context} needs sequences of {context + ANSWER} "
            "tokens",
            hint=f"The artifact was compiled with --max-model-len {limits.max_model_len}: {fits}.",
        )
    return context, ANSWER


def _what_fits(phase: Phase, rounds: int, room: int) -> str:
    """Suggests changes by which a phase needs sequences of at most `room` tokens."""
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
