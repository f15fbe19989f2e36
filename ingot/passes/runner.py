"""The runner: applies the steps, and does everything around a pass that no pass should.

After every pass: dead code goes, the graph is linted, matches are counted against what the model
must have, invariants are checked, and, on request, the graph is dumped and run.

The one thing that a graph carries beside its nodes is `gm.meta["weight_sources"]`: for every
parameter that a pass made, the names of the model's parameters that are stacked in it (see
`ingot.passes.weights`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.fx import GraphModule

from ingot.artifact.manifest import LedgerEntry
from ingot.artifact.target import Target
from ingot.errors import IngotError, InternalError, PassError
from ingot.passes.dump import Dump, node_text
from ingot.passes.graph import calls, origin
from ingot.passes.numerics import Checker
from ingot.passes.step import Facts, Invariant, Step

# Called as progress(stage, detail, fraction).
Progress = Callable[[str, str, float | None], None]

NEAR_MISSES_SHOWN = 3


def silent(stage: str, detail: str, fraction: float | None) -> None:
    """A progress callback that says nothing."""


def run(
    gm: GraphModule,
    steps: Sequence[Step],
    facts: Facts,
    *,
    target: Target,
    dump_dir: Path | None = None,
    verify: bool = False,
    progress: Progress = silent,
) -> tuple[LedgerEntry, ...]:
    """Apply the steps to the graph, in place; returns how often each had to match, and did.

    Args:
        steps: `pipeline(...)`.
        facts: the model's config.
        target: what the graph is compiled for; handed to every pass.
        dump_dir: a folder for the graph after every pass and a summary.
        verify: run the graph before and after every pass on random weights and inputs.
        progress: called before every pass.

    Raises:
        PassError: a pass that matched another number of times than the model must have, broke an
            invariant or moved the numbers.
    """
    dump, checker = Dump(dump_dir, gm), Checker(gm) if verify else None
    held: list[Invariant] = []
    ledger = []
    for index, step in enumerate(steps, start=1):
        progress("passes", step.name, (index - 1) / len(steps))
        require(gm, step, step.needs, "before")
        start = time.perf_counter()
        matched = apply(gm, step, target)
        dump.after(index, step.name, gm, time.perf_counter() - start, matched)
        expected = check_count(gm, step, facts, matched)
        held += [invariant for invariant in step.gives if invariant not in held]
        require(gm, step, held, "after")
        if checker is not None:
            checker.check(step)
        ledger.append(
            LedgerEntry(name=step.name, tier=step.tier, expected=expected, matched=matched)
        )
    gm.recompile()
    return tuple(ledger)


def apply(gm: GraphModule, step: Step, target: Target) -> int:
    """Run one pass and tidy up after it."""
    try:
        matched = step.function(gm, target=target)
        gm.graph.eliminate_dead_code()
        gm.graph.lint()
    except IngotError:
        raise
    except Exception as error:
        raise InternalError(
            f"pass {step.name} failed: {type(error).__name__}: {error}",
            hint="Please report it with the model's config.json"
            + ("; --disable-pass " + step.name + " leaves the pass out." if step.optional else "."),
        ) from error
    return matched


def check_count(gm: GraphModule, step: Step, facts: Facts, matched: int) -> int | None:
    """Compare how often a pass matched with what the model must have."""
    if step.expect is None:
        return None
    expected = step.expect(facts)
    if matched != expected:
        raise PassError(
            step.name,
            f"matched {matched} times, the model must have {expected} matches",
            hint=near_misses(gm, step),
        )
    return expected


def near_misses(gm: GraphModule, step: Step) -> str:
    """The calls that the pass should have taken, each with what feeds and what reads it."""
    left = calls(gm, *step.anchors)
    if not left:
        return "Nothing in the graph resembles what it looks for."
    shown = []
    for node in left[:NEAR_MISSES_SHOWN]:
        around = [*node.all_input_nodes, node, *node.users]
        lines = [f"    {node_text(n)}" for n in around if n.op == "call_function"]
        shown.append("\n".join((f"  at {origin(node) or 'the model itself'}:", *lines)))
    more = f"\n  and {len(left) - len(shown)} more" if len(left) > len(shown) else ""
    return "Nearest misses:\n" + "\n".join(shown) + more


def require(gm: GraphModule, step: Step, invariants: Sequence[Invariant], when: str) -> None:
    """Check invariants before or after a pass."""
    for invariant in invariants:
        broken = invariant(gm)
        if broken:
            listed = "\n".join(f"  {line}" for line in broken[:NEAR_MISSES_SHOWN])
            rule = (invariant.__doc__ or invariant.__name__).splitlines()[0]
            raise PassError(
                step.name,
                f"{when} it, {invariant.__name__} does not hold",
                hint=f"Required: {rule}\nFound:\n{listed}",
            )
