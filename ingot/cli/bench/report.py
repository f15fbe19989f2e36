"""Results of `ingot bench`, as text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from statistics import median
from typing import Any

from ingot.artifact.cost import Cost, total
from ingot.artifact.host import processor_name
from ingot.artifact.plan import Plan
from ingot.artifact.reader import Artifact
from ingot.cli.bench.phases import PhaseResult, Trace
from ingot.cli.bench.speculation import SpeculationTurns
from ingot.cli.built import stored
from ingot.cli.inspect.view import kernel_views
from ingot.cli.numbers import format_bytes, format_seconds
from ingot.cli.output import facts, table
from ingot.runtime.config import EngineConfig
from ingot.runtime.limits import MachineLimits

_LAYER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class KernelRow:
    """The kernels that do the same in every layer, added up; `share` is that of their limit."""

    kernel: str
    origin: str
    count: int
    seconds: float
    cost: Cost
    share: float | None


def text(artifact: Artifact, results: list[PhaseResult]) -> str:
    """The limits, and a line for each phase."""
    limits = machine_limits(results)
    weights, target = stored(artifact.manifest.numerics), artifact.target.name
    head = f"{artifact.path}: {weights} on {target}, {limits.threads} threads"
    header = ("phase", "tok/s", "GB/s", "TOP/s", "of limit", "bound by", "a step")
    return f"{head}\n\n{_limits_text(limits)}\n\n{table(map(_row, results), header)}"


def kernels_text(plan: Plan, result: PhaseResult) -> str:
    """A line for each kernel of a phase, added up over the layers, the slowest first."""
    rows = kernel_rows(plan, result)
    whole = sum(row.seconds for row in rows)
    cells = [
        (
            row.kernel,
            row.origin or "-",
            row.count,
            f"{1e3 * row.seconds:.3f}",
            f"{100 * row.seconds / whole:.1f}",
            f"{row.cost.num_bytes / 1e6:.2f}",
            f"{row.cost.num_operations / 1e9:.3f}",
            "-" if row.share is None else f"{100 * row.share:.0f}",
        )
        for row in rows
    ]
    header = ("kernel", "from", "count", "ms", "% of step", "MB", "GOP", "% of limit")
    head = f"{result.phase.name}: {format_seconds(whole)} in {len(plan.kernels)} kernels"
    return f"{head}\n{table(cells, header)}"


def _share(traces: list[Trace], indices: list[int], cost: Cost) -> float | None:
    """The least time for a cost over the time that these kernels took: the median of the rounds."""
    rounds = [(t.limits.seconds(cost), sum(t.kernel_seconds[i] for i in indices)) for t in traces]
    if not all(took > 0 for _, took in rounds):
        return None
    return median(least / took for least, took in rounds) or None


def kernel_rows(plan: Plan, result: PhaseResult) -> list[KernelRow]:
    """The kernels of a phase by name and place in the model, added up over the layers."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, view in enumerate(kernel_views(plan)):
        place = " ".join(_LAYER.sub(".*", view.origin).split())
        groups.setdefault((view.name, place), []).append(index)
    rows = []
    for (kernel, origin), indices in groups.items():
        seconds = sum(result.kernel_seconds[i] for i in indices)
        cost = total(result.kernel_costs[i] for i in indices)
        # The weights of a norm are in a cache already: only products and attention have a limit.
        share = _share(result.traces, indices, cost) if cost.num_operations else None
        rows.append(KernelRow(kernel, origin, len(indices), seconds, cost, share))
    return sorted(rows, key=lambda row: -row.seconds)


def speculation_text(speculative: EngineConfig, compared: list[SpeculationTurns]) -> str:
    """A line for each text: its speed without and with speculation, and what became of drafts."""
    header = ("text", "tok/s without", "tok/s with", "gain", "drafted", "accepted", "tokens a step")
    most = speculative.guesses.most
    head = f"speculation by {speculative.speculative}, guesses of at most {most} tokens"
    return f"{head}\n\n{table(map(_compared_row, compared), header)}"


def _compared_row(found: SpeculationTurns) -> tuple[str, ...]:
    rate = found.acceptance_rate
    return (
        found.text.name,
        f"{found.plain_rate:.1f}",
        f"{found.drafted_rate:.1f}",
        f"{found.ratio:.2f} x",
        str(found.num_draft_tokens),
        "-" if rate is None else f"{100 * rate:.0f} %",
        f"{found.tokens_per_step:.2f}",
    )


def speculation_object(
    speculative: EngineConfig, compared: list[SpeculationTurns]
) -> dict[str, Any]:
    """Gains of speculation for JSON: every turn beside the figures made of them."""
    return {
        "speculation": {
            "method": speculative.speculative,
            "num_speculative_tokens": speculative.guesses.most,
            "texts": [
                {
                    "name": found.text.name,
                    "sequences": len(found.text.requests),
                    "prompt_tokens": len(found.text.requests[0][0]),
                    "tokens": found.tokens,
                    "plain_tokens_per_second": found.plain_rate,
                    "tokens_per_second": found.drafted_rate,
                    "ratio": found.ratio,
                    "num_draft_tokens": found.num_draft_tokens,
                    "acceptance_rate": found.acceptance_rate,
                    "tokens_per_step": found.tokens_per_step,
                    "plain_turns": found.plain,
                    "turns": found.drafted,
                }
                for found in compared
            ],
        }
    }


def as_object(artifact: Artifact, results: list[PhaseResult]) -> dict[str, Any]:
    """Everything that was measured, for programs."""
    manifest = artifact.manifest
    return {
        "artifact": artifact.path,
        "digest": manifest.digest,
        "processor": processor_name(),
        "model": manifest.model.name,
        "dtype": manifest.numerics.dtype,
        "quantization": manifest.numerics.quantization,
        "kv_dtype": artifact.plan.kv_dtype,
        "target": artifact.target.name,
        "limits": machine_limits(results),
        "phases": [_phase_object(artifact.plan, result) for result in results],
    }


def machine_limits(results: Iterable[PhaseResult]) -> MachineLimits:
    """The best limits that were seen in any phase."""
    return reduce(MachineLimits.best, (result.limits for result in results))


def _limits_text(limits: MachineLimits) -> str:
    peaks = limits.operations_per_second.items()
    return facts(
        (
            ("reads", f"{limits.read_bytes_per_second / 1e9:.1f} GB/s"),
            ("computes", ", ".join(f"{kind} {peak / 1e12:.2f} TOP/s" for kind, peak in peaks)),
        )
    )


def _row(result: PhaseResult) -> tuple[str, ...]:
    cost, seconds = result.cost, result.seconds
    return (
        result.phase.name,
        f"{result.tokens_per_second:.1f}",
        f"{cost.num_bytes / seconds / 1e9:.1f}",
        f"{cost.num_operations / seconds / 1e12:.3f}",
        f"{100 * result.share:.0f} %",
        result.bound,
        f"{format_seconds(seconds)}, {format_bytes(cost.num_bytes)}",
    )


def _phase_object(plan: Plan, result: PhaseResult) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": result.phase.name,
        "sequences": result.phase.sequences,
        "prompt_tokens": result.phase.prompt_tokens,
        "tokens": result.tokens,
        "seconds": result.seconds,
        "round_seconds": result.round_seconds,
        "tokens_per_second": result.tokens_per_second,
        "weight_bytes": result.cost.weight_bytes,
        "kv_bytes": result.cost.kv_bytes,
        "operations": result.cost.operations,
        "limit_seconds": result.share * result.seconds,
        "bound": result.bound,
        "share": result.share,
        "limits": result.limits,
    }
    if result.kernel_seconds:
        found["by_kernel"] = kernel_rows(plan, result)
        found["kernels"] = [
            {"kernel": view.name, "origin": view.origin, "seconds": seconds, "cost": cost}
            for view, seconds, cost in zip(
                kernel_views(plan), result.kernel_seconds, result.kernel_costs, strict=True
            )
        ]
    return found
