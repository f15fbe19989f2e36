"""Text and JSON of `ingot compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ingot.cli.output import facts, table

if TYPE_CHECKING:
    from ingot.compare.compare import Comparison, GreedyDifference, PromptResult
    from ingot.compare.measure import Measures

MOST_ROWS = 8
COLUMNS = ("prompt", "tokens", "largest", "relative", "KL", "top-1", "greedy")


def summary(found: Comparison) -> str:
    """The sides, how far they are apart, and the prompts that differ most."""
    sides = zip("AB", found.names, found.whats, strict=True)
    sections = [
        facts((letter, f"{name}: {what}") for letter, name, what in sides),
        facts(_facts(found)),
        _table(found),
    ]
    return "\n\n".join(section for section in sections if section)


def exceeded(measures: Measures, *, max_kl: float | None, max_error: float | None) -> list[str]:
    """The limits that do not hold, in words."""
    checks = (
        ("the mean KL", measures.mean_kl, "--max-kl", max_kl),
        ("the relative error", measures.relative_error, "--max-error", max_error),
    )
    return [
        f"{what} is {value:.3g}, and {option} allows {limit:g}"
        for what, value, option, limit in checks
        if limit is not None and not value <= limit
    ]


def as_object(found: Comparison, *, passed: bool) -> dict[str, Any]:
    """The comparison for JSON, which has no infinity: null stands for it."""
    sides = [
        {"name": name, "what": what} for name, what in zip(found.names, found.whats, strict=True)
    ]
    fields: dict[str, Any] = finite(
        {
            "identical": found.measures.identical,
            "same_files": found.same_files,
            "passed": passed,
            "sides": sides,
            "measures": asdict(found.measures),
            "difference": found.difference and asdict(found.difference),
            "prompts": [asdict(prompt) for prompt in found.prompts],
        }
    )
    return fields


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _facts(found: Comparison) -> list[tuple[str, str]]:
    measures = found.measures
    rows = [("files", "the same, byte for byte")] if found.same_files else []
    if not found.prompts:
        return [*rows, ("logits", "identical; not run, as this host has none of the targets")]
    rows.append(("compared", f"{measures.num_positions} positions of {len(found.prompts)} prompts"))
    if measures.identical:
        return [*rows, ("logits", "identical, bit by bit")]
    if measures.num_not_finite:
        rows.append(("not finite", f"{measures.num_not_finite} positions"))
    return [
        *rows,
        (
            "logit error",
            f"largest {measures.max_error:.2e}, relative {measures.relative_error:.2e}",
        ),
        ("KL", f"mean {measures.mean_kl:.2e}, 99.9th percentile {measures.tail_kl:.2e} nats"),
        ("likeliest", f"top-1 {_share(measures.top1)}, top-5 {_share(measures.top5)} the same"),
        ("greedy", _greedy(found.prompts, found.difference)),
    ]


def _greedy(prompts: Sequence[PromptResult], difference: GreedyDifference | None) -> str:
    if difference is None:
        return f"all {sum(prompt.num_greedy for prompt in prompts)} tokens the same"
    said = ", ".join(
        f"{side} says {token}{text and f' {text!r}'} by {margin:.2g}"
        for side, token, text, margin in zip(
            "AB", difference.chosen, difference.texts, difference.margins, strict=True
        )
    )
    return f"token {difference.index + 1} after {difference.where} differs: {said}"


def _table(found: Comparison) -> str:
    """The prompts that differ most; empty where none does."""
    if found.measures.identical:
        return ""
    worst = sorted(found.prompts, key=lambda each: -each.measures.mean_kl)[:MOST_ROWS]
    rows = [
        (
            each.where,
            each.num_tokens,
            f"{each.measures.max_error:.2e}",
            f"{each.measures.relative_error:.2e}",
            f"{each.measures.mean_kl:.2e}",
            _share(each.measures.top1),
            each.num_greedy if each.difference is None else f"{each.num_greedy}, then not",
        )
        for each in worst
    ]
    more = len(found.prompts) - len(rows)
    return table(rows, COLUMNS) + (
        f"\n  and {more} more prompts, which differ less" if more else ""
    )


def _share(share: float) -> str:
    return f"{share:.1%}"
