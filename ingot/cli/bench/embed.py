"""`ingot bench embed`: texts a second, beside the limit of this machine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from ingot.cli.arguments import MODEL, REVISION, Argument, Arguments
from ingot.cli.numbers import human_int
from ingot.cli.output import print_json, show, table
from ingot.cli.progress import progress_display
from ingot.errors import UsageError

if TYPE_CHECKING:
    from ingot.artifact.plan import Plan
    from ingot.artifact.reader import Artifact
    from ingot.runtime.encoder import EncodedText, TextEncoder
    from ingot.runtime.limits import LimitsMeter, MachineLimits

LENGTHS = (16, 64, 256)
BATCHES = (1, 64)
MOST_TEXTS = 64  # of a round

ARGUMENTS: Arguments = (
    MODEL,
    REVISION,
    Argument("--tokens N", "texts of this length alone (default: 16, 64 and 256)", human_int),
    Argument("--batch N", "so many texts at once alone (default: 1, and 64)", human_int),
    Argument("--rounds N", "rounds, of which the median counts (default: 9)", human_int, default=9),
    Argument("--threads N", "default: one per processor that this process may use", human_int),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFigures:
    """Texts of a length, so many given at once: how long that took, and what it needs at least.

    Times are in seconds. `share` is the part of the limit that was reached.
    """

    tokens: int
    batch: int
    seconds: float
    texts_per_second: float
    limit_seconds: float
    share: float


def main(args: argparse.Namespace) -> int:
    """Measures how many texts a model of whole texts reads a second, of several lengths, one at a
    time and many at once. Prints each beside the least time that its bytes and operations need on
    this machine, which is measured in the same process."""
    from ingot.artifact.reader import Artifact
    from ingot.compiled import resolve
    from ingot.hub.names import model_path
    from ingot.runtime.encoder import TextEncoder
    from ingot.runtime.limits import LimitsMeter

    artifact = Artifact.open(resolve(model_path(args.model, args.revision)), device="cpu")
    if not artifact.manifest.encodes:
        raise UsageError(f"{artifact.path} generates text", hint="Measure it with `ingot bench`.")
    encoder = TextEncoder(artifact, num_threads=args.threads)
    weights = sum(artifact.manifest.files[name].size for name in artifact.names("weights"))
    try:
        with LimitsMeter(artifact, weights, args.threads) as meter, progress_display() as progress:
            found = []
            for tokens, batch in _cells(args, encoder.longest):
                progress("measure", f"{batch} of {tokens} tokens", None)
                found.append(_measured(artifact, encoder, meter, tokens, batch, args.rounds))
    finally:
        encoder.close()
    if args.json:
        print_json({"artifact": artifact.path, "figures": [asdict(each) for each in found]})
    else:
        show(_text(artifact, found))
    return 0


def _cells(args: argparse.Namespace, longest: int) -> Iterator[tuple[int, int]]:
    lengths = [args.tokens] if args.tokens else [n for n in LENGTHS if n <= longest]
    for tokens in lengths:
        for batch in [args.batch] if args.batch else BATCHES:
            yield tokens, batch


def _measured(
    artifact: Artifact,
    encoder: TextEncoder,
    meter: LimitsMeter,
    tokens: int,
    batch: int,
    rounds: int,
) -> TextFigures:
    """The median of rounds, with the machine's limits measured between them."""
    from ingot.artifact.programs import TOKENS

    texts = _texts(artifact, tokens, batch)
    run = encoder.run_tokens if encoder.program == TOKENS.name else encoder.run
    run(texts)
    times, limits = [], meter.measure(3)
    for _ in range(rounds):
        began = time.perf_counter()
        run(texts)
        times.append(time.perf_counter() - began)
        limits = limits.best(meter.measure())
    seconds = median(times)
    least = _least(artifact.plan, limits, tokens, batch)
    return TextFigures(
        tokens=tokens,
        batch=batch,
        seconds=seconds,
        texts_per_second=batch / seconds,
        limit_seconds=least,
        share=least / seconds,
    )


def _texts(artifact: Artifact, tokens: int, batch: int) -> list[EncodedText]:
    from ingot.runtime.encoder import EncodedText

    size = artifact.manifest.model.vocab_size
    return [EncodedText([(7 * i + 31 * n) % size for i in range(tokens)]) for n in range(batch)]


def _least(plan: Plan, limits: MachineLimits, tokens: int, batch: int) -> float:
    """The least seconds for texts, in as few steps as hold them."""
    from ingot.artifact.cost import StepShape
    from ingot.artifact.step_cost import step_cost

    in_step = min(batch, plan.limits.max_num_seqs, plan.limits.max_num_batched_tokens // tokens)
    steps = -(-batch // in_step)
    shape = StepShape(sequences=in_step, new_tokens=tokens, context=tokens)
    return steps * limits.seconds(step_cost(plan, shape)) * batch / (steps * in_step)


def _text(artifact: Artifact, found: Sequence[TextFigures]) -> str:
    rows = [
        (
            each.tokens,
            each.batch,
            f"{1e3 * each.seconds:.2f} ms",
            f"{each.texts_per_second:.1f}",
            f"{1e3 * each.limit_seconds:.2f} ms",
            f"{100 * each.share:.0f} %",
        )
        for each in found
    ]
    header = ("tokens", "at once", "time", "texts/s", "limit", "of limit")
    return f"{artifact.path} on {artifact.target.name}\n{table(rows, header)}"
