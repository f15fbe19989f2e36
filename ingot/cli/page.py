"""The page of `ingot inspect --html`: one self-contained file, no network, no libraries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ingot.artifact.cost import Cost, StepShape
from ingot.artifact.plan import Plan
from ingot.artifact.step_cost import kernel_costs
from ingot.cli.arena_svg import arena_svg, color_of_kernel, live_svg
from ingot.cli.artifact_view import (
    ArtifactView,
    KernelView,
    kernel_counts,
    kernel_views,
    live_bytes,
    shape_text,
)
from ingot.cli.numbers import format_bytes, format_count
from ingot.cli.page_style import SCRIPT, STYLE


def artifact_page(view: ArtifactView, target: str) -> str:
    """The page of an artifact, with the plan of one of its targets."""
    plan = view.plans[target]
    name = escape(view.manifest.model.name)
    body = "\n".join(
        (
            _head(view, plan),
            '<div class="columns"><div>',
            _section("Targets", _targets(view)),
            _section("Files", _bars(view.folder_bytes())),
            _section("Kernels", _counts(plan)),
            "</div><div>",
            _section("Ledger", _ledger(view)),
            "</div></div>",
            _section("Arena", _arena(plan)),
            _section(f"Plan of {escape(target)}", _kernels(plan)),
        )
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body><main>\n{body}\n</main>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _head(view: ArtifactView, plan: Plan) -> str:
    manifest, model = view.manifest, view.manifest.model
    numerics, limits = manifest.numerics, manifest.limits
    longest = format_bytes(model.kv_bytes_per_token * limits.max_model_len)
    cards = (
        (format_count(model.num_parameters), f"parameters, {model.num_layers} layers"),
        (format_bytes(view.folder_bytes().get("weights", 0)), f"weights in {numerics.dtype}"),
        (format_bytes(plan.memory.arena_bytes), "arena of a step"),
        (
            format_bytes(model.kv_bytes_per_token),
            f"KV cache a token in {plan.kv_dtype}; {longest} a full sequence",
        ),
        (f"{limits.max_model_len}", "tokens in a sequence at most"),
        (f"{numerics.tolerance:g}", "error allowed to a golden log-probability"),
    )
    boxes = "".join(
        f'<div class="card"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in cards
    )
    version = ".".join(str(part) for part in manifest.format)
    return (
        f"<h1>{escape(model.name)}</h1>"
        f'<p class="sub">{escape(model.architecture)} · format {version} · written by ingot '
        f'{escape(manifest.ingot_version)}</p><div class="cards">{boxes}</div>'
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _table(
    header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), css: str = ""
) -> str:
    """A table of cells that are HTML; the columns in `numbers` are aligned to the right."""
    kind = ['class="n"' if column in numbers else "" for column in range(len(header))]
    head = "".join(f"<th {k}>{cell}</th>" for k, cell in zip(kind, header, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td {k}>{c}</td>" for k, c in zip(kind, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<table class="{css}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _bars(sizes: dict[str, int]) -> str:
    largest = max(sizes.values(), default=1) or 1
    rows = (
        (
            escape(name),
            format_bytes(size),
            f'<div class="bar" style="width:{100 * size / largest:.1f}%"></div>',
        )
        for name, size in sorted(sizes.items(), key=lambda item: -item[1])
    )
    return _table(("folder", "bytes", ""), rows, numbers=(1,), css="bars")


def _targets(view: ArtifactView) -> str:
    rows = (
        (
            f"<code>{escape(target.name)}</code><br>"
            f'<span class="dim">needs {escape(" ".join(target.requires) or "nothing")}</span>',
            format_bytes(view.manifest.files[target.step.kernels].size),
        )
        for target in view.manifest.targets
    )
    return _table(("target", "code"), rows, numbers=(1,))


def _ledger(view: ArtifactView) -> str:
    rows = []
    for entry in view.manifest.ledger:
        enough = entry.expected is None or entry.matched >= entry.expected
        mark = f'<span class="{"ok" if enough else "bad"}">{"✓" if enough else "✗"}</span>'
        expected = "-" if entry.expected is None else str(entry.expected)
        name = f"<code>{escape(entry.name)}</code>"
        rows.append((name, str(entry.matched), expected, escape(entry.tier), mark))
    return _table(("pass", "matched", "expected", "tier", ""), rows, numbers=(1, 2))


def _counts(plan: Plan) -> str:
    counts = kernel_counts(plan)
    largest = max(counts.values(), default=1)
    rows = (
        (
            f"<code>{escape(op)}</code>",
            str(count),
            f'<div class="bar" style="width:{100 * count / largest:.1f}%"></div>',
        )
        for op, count in counts.items()
    )
    return _table(("kernel", "count", ""), rows, numbers=(1,), css="bars")


def _arena(plan: Plan) -> str:
    live = live_bytes(plan)
    legend = "".join(
        f'<span><i class="c{color}"></i>{escape(op)}</span>'
        for op, color in color_of_kernel(plan).items()
    )
    peak, whole = max(live, default=0), sum(slot.nbytes for slot in plan.memory.slots)
    text = (
        f"Every temporary of the largest step ({plan.limits.max_num_batched_tokens} tokens) as a "
        f"rectangle: its lifetime across, its place down. {len(plan.memory.slots)} "
        f"temporaries of {format_bytes(whole)} share {format_bytes(plan.memory.arena_bytes)}; at "
        f"most {format_bytes(peak)} are in use at once."
    )
    return (
        f'<p class="dim">{text}</p><div class="panel">{arena_svg(plan)}'
        f'<div class="legend">{legend}</div></div>'
        f'<h2>Bytes in use</h2><div class="panel">{live_svg(live, plan.memory.arena_bytes)}</div>'
    )


def _kernels(plan: Plan) -> str:
    context = min(512, plan.limits.max_model_len)
    costs = kernel_costs(plan, StepShape(context=context))
    rows = (
        _row(index, view, cost, plan)
        for index, (view, cost) in enumerate(zip(kernel_views(plan), costs, strict=True))
    )
    header = ("#", "kernel", "outputs", "inputs", "attributes", "reads", "operations", "from")
    filled = _table(header, rows, numbers=(0, 5, 6), css="mono")
    note = (
        "Under a kernel's name: the primitives that it runs. Bytes read and operations are "
        f"those of one token, decoded at a context of {context}."
    )
    return (
        f'<p class="dim">{note}</p>'
        '<input id="filter" placeholder="Filter: words of a kernel, a buffer or a module" '
        f'aria-label="Filter"><div class="scroll" id="instructions">{filled}</div>'
    )


def _row(index: int, view: KernelView, cost: Cost, plan: Plan) -> tuple[str, ...]:
    outputs = "<br>".join(
        f'{escape(name)} <span class="dim">{escape(shape_text(plan.buffer(name)))}</span>'
        for name in view.outputs
    )
    parts = f'<br><span class="dim">{escape(" ".join(view.ops))}</span>' if view.ops[1:] else ""
    return (
        str(index),
        f'<b class="op">{escape(view.name)}</b>{parts}',
        outputs,
        escape(" ".join(view.inputs)),
        escape(view.attrs),
        format_bytes(cost.num_bytes) if cost.num_bytes else "",
        format_count(cost.num_operations) if cost.num_operations else "",
        escape(view.origin),
    )
