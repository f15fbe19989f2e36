"""Text and JSON of `ingot compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ingot.cli.output import facts, table
from ingot.compare.forms import OF_VECTORS

if TYPE_CHECKING:
    from ingot.compare.compare import Comparison, GreedyDifference, PromptResult
    from ingot.compare.measure import Measures

MOST_ROWS = 8
# Heads of the table, by what both sides do.
COLUMNS = {
    "generate": ("prompt", "tokens", "largest", "relative", "KL", "top-1", "greedy"),
    "classify": ("text", "tokens", "largest", "relative", "KL", "likeliest"),
    "token_classify": ("text", "tokens", "largest", "relative", "KL", "likeliest"),
    "embed": ("text", "tokens", "largest", "relative", "cosine"),
    "token_embed": ("text", "tokens", "largest", "relative", "cosine"),
}
NUMBERS = {
    **{"generate": "logit", "classify": "score", "token_classify": "score"},
    **{"embed": "vector", "token_embed": "vector"},
}
NO_DISTRIBUTION = ("mean_kl", "tail_kl", "top1", "top5")  # measures that vectors have not


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
            "task": found.task,
            "measures": measured(found, found.measures),
            "difference": found.difference and asdict(found.difference),
            "prompts": [
                asdict(prompt) | {"measures": measured(found, prompt.measures)}
                for prompt in found.prompts
            ],
        }
    )
    return fields


def measured(found: Comparison, measures: Measures) -> dict[str, Any]:
    """The measures that say something of what both sides do."""
    left_out = NO_DISTRIBUTION if found.task in OF_VECTORS else ()
    return {name: value for name, value in asdict(measures).items() if name not in left_out}


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _facts(found: Comparison) -> list[tuple[str, str]]:
    measures, name = found.measures, NUMBERS[found.task]
    rows = [("files", "the same, byte for byte")] if found.same_files else []
    if not found.prompts:
        return [*rows, (f"{name}s", "identical; not run, as this host has none of the targets")]
    rows.append(("compared", _compared(found)))
    if measures.identical:
        return [*rows, (f"{name}s", "identical, bit by bit")]
    if measures.num_not_finite:
        rows.append(("not finite", f"{measures.num_not_finite} positions"))
    error = f"largest {measures.max_error:.2e}, relative {measures.relative_error:.2e}"
    rows.append((f"{name} error", error))
    if found.task in OF_VECTORS:
        return [*rows, ("cosine", f"{measures.cosine:.7f} or more")]
    if found.task in ("classify", "token_classify"):
        rows.append(("KL", f"mean {measures.mean_kl:.2e} nats"))
        return [*rows, ("likeliest", f"the same label for {_share(measures.top1)}")]
    return [
        *rows,
        ("KL", f"mean {measures.mean_kl:.2e}, 99.9th percentile {measures.tail_kl:.2e} nats"),
        ("likeliest", f"top-1 {_share(measures.top1)}, top-5 {_share(measures.top5)} the same"),
        ("greedy", _greedy(found.prompts, found.difference)),
    ]


def _compared(found: Comparison) -> str:
    count = len(found.prompts)
    if found.task != "generate":
        return f"{count} texts"
    return f"{found.measures.num_positions} positions of {count} prompts"


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
    heads = COLUMNS[found.task]
    worst = found.worst[:MOST_ROWS]
    rows = [(*_row(each)[: len(heads) - 1], _last(found, each)) for each in worst]
    more = len(found.prompts) - len(rows)
    return table(rows, heads) + (f"\n  and {more} more prompts, which differ less" if more else "")


def _row(each: PromptResult) -> tuple[object, ...]:
    measures = each.measures
    return (
        each.where,
        each.num_tokens,
        f"{measures.max_error:.2e}",
        f"{measures.relative_error:.2e}",
        f"{measures.mean_kl:.2e}",
        _share(measures.top1),
    )


def _last(found: Comparison, each: PromptResult) -> object:
    """The last column: what tells most of what both sides do."""
    if found.task in OF_VECTORS:
        return f"{each.measures.cosine:.7f}"
    if found.task == "classify":
        return "the same" if each.measures.top1 == 1 else "another"
    if found.task == "token_classify":
        return _share(each.measures.top1)
    return each.num_greedy if each.difference is None else f"{each.num_greedy}, then not"


def _share(share: float) -> str:
    return f"{share:.1%}"
