"""The runner: applies the passes, and does everything around a pass that no pass should.

After every pass: dead code goes, the graph is linted, matches are counted against what the model
must have, invariants are checked, and, on request, the graph is dumped and run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.fx import GraphModule

from ingot.artifact.manifest import LedgerEntry
from ingot.errors import IngotError, InternalError, PassError
from ingot.passes.declaration import Invariant, Pass
from ingot.passes.dump import Dump, node_text
from ingot.passes.graph import calls, origin
from ingot.passes.layer_log import LayerLog
from ingot.passes.verification import Checker

NEAR_MISSES_SHOWN = 3
# None for a module that does not say what it becomes: its passes take what they find.
Counts = Mapping[str, int] | None


def run(
    gm: GraphModule,
    passes: Sequence[Pass],
    counts: Counts,
    *,
    dump_dir: Path | None = None,
    log: LayerLog | None = None,
    verify: bool = False,
) -> tuple[LedgerEntry, ...]:
    """Apply the passes to the graph, in place; returns how often each had to match, and did.

    Args:
        passes: `pipeline(...)`.
        counts: what the model's blocks become, by name, as `ingot.models.counts` sums it up.
        dump_dir: a folder for the graph after every pass and a summary.
        log: told the graph before the first pass and after every one.
        verify: run the graph before and after every pass on random weights and inputs.

    Raises:
        PassError: a pass matched more or less often, broke an invariant or moved the numbers.
    """
    dump, log = Dump(dump_dir, gm), log or LayerLog({})
    log.begin(gm)
    checker, held, ledger = Checker(gm) if verify else None, list[Invariant](), []
    for index, each in enumerate(passes, start=1):
        require(gm, each, each.needs, "before")
        start = time.perf_counter()
        matched = apply(gm, each)
        dump.after(index, each.name, gm, time.perf_counter() - start, matched)
        log.after(each.name, gm)
        expected = check_count(gm, each, counts, matched)
        ledger.append(
            LedgerEntry(name=each.name, tier=each.tier, expected=expected, matched=matched)
        )
        held += [invariant for invariant in each.gives if invariant not in held]
        require(gm, each, held, "after")
        if checker is not None:
            checker.check(each)
    gm.recompile()
    return tuple(ledger)


def apply(gm: GraphModule, each: Pass) -> int:
    """Run one pass and tidy up after it."""
    try:
        matched = each.function(gm)
        gm.graph.eliminate_dead_code()  # it lints the graph first
    except IngotError:
        raise
    except Exception as error:
        raise InternalError(
            f"pass {each.name} failed: {type(error).__name__}: {error}",
            hint="Please report it with the model's config.json"
            + ("; --disable-pass " + each.name + " leaves the pass out." if each.optional else "."),
        ) from error
    return matched


def check_count(gm: GraphModule, each: Pass, counts: Counts, matched: int) -> int | None:
    """Compare how often a pass matched with what the model's blocks say."""
    if each.expect is None or (counts is None and not isinstance(each.expect, int)):
        return None
    expected = each.expect if isinstance(each.expect, int) else (counts or {}).get(each.expect, 0)
    if matched < expected:
        found = f"matched {matched} times, but the model has {expected} places for it"
        raise PassError(each.name, found, hint=near_misses(gm, each))
    if matched > expected:
        raise PassError(
            each.name,
            f"matched {matched} times, but the model's blocks account for {expected}",
            hint="A block computes more than its `becomes` says, or the pass takes for a match "
            "what is none. --dump DIR shows the graph before and after it.",
        )
    return expected


def near_misses(gm: GraphModule, each: Pass) -> str:
    """The calls that the pass should have taken, each with what feeds and what reads it."""
    left = calls(gm, *each.anchors)
    if not left:
        return "Nothing in the graph resembles what it looks for."
    shown = []
    for node in left[:NEAR_MISSES_SHOWN]:
        around = [*node.all_input_nodes, node, *node.users]
        lines = [f"    {node_text(n)}" for n in around if n.op == "call_function"]
        shown.append("\n".join((f"  at {origin(node) or 'the model itself'}:", *lines)))
    more = f"\n  and {len(left) - len(shown)} more" if len(left) > len(shown) else ""
    return "Nearest misses:\n" + "\n".join(shown) + more


def require(gm: GraphModule, each: Pass, invariants: Sequence[Invariant], when: str) -> None:
    """Check invariants before or after a pass."""
    for invariant in invariants:
        broken = invariant(gm)
        if broken:
            listed = "\n".join(f"  {line}" for line in broken[:NEAR_MISSES_SHOWN])
            rule = (invariant.__doc__ or invariant.__name__).splitlines()[0]
            raise PassError(
                each.name,
                f"{when} it, {invariant.__name__} does not hold",
                hint=f"Required: {rule}\nFound:\n{listed}",
            )
