"""The arena as a picture: every temporary a rectangle, lifetime across, offset down."""

from __future__ import annotations

from html import escape

from ingot.artifact.plan import Plan, Slot
from ingot.cli.artifact_view import kernel_views
from ingot.cli.numbers import format_bytes

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 1120, 380, 78, 10, 34
COLORS = 10  # the page's style defines --c0 to --c9


def color_of_kernel(plan: Plan) -> dict[str, int]:
    """A colour number for each kernel that makes a temporary, in order of appearance."""
    kernels = dict.fromkeys(view.name for view in kernel_views(plan) if view.outputs)
    return {kernel: index % COLORS for index, kernel in enumerate(kernels)}


def arena_svg(plan: Plan) -> str:
    """An SVG element that draws the arena of the largest step."""
    steps = max(len(plan.kernels), 1)
    size = max(plan.memory.arena_bytes, 1)
    made_by = _makers(plan)
    colors = color_of_kernel(plan)
    rects = (
        _rectangle(slot, steps, size, made_by.get(slot.name, ""), colors)
        for slot in plan.memory.slots
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Lifetimes and offsets">'
        + _axes(steps, size)
        + "".join(rects)
        + "</svg>"
    )


def live_svg(live: list[int], arena_bytes: int) -> str:
    """An SVG element with the bytes in use at each kernel, under the arena's size."""
    height, top = 110, 8
    size = max(arena_bytes, 1)
    inner = WIDTH - LEFT - 10
    step = inner / max(len(live), 1)
    low = height - top
    points = [f"{LEFT},{low}"]
    for index, used in enumerate(live):
        y = low - (low - top) * used / size
        points += [f"{LEFT + index * step:.1f},{y:.1f}", f"{LEFT + (index + 1) * step:.1f},{y:.1f}"]
    points.append(f"{LEFT + inner},{low}")
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Bytes in use">'
        f'<polygon class="live" points="{" ".join(points)}"/>'
        f'<line class="limit" x1="{LEFT}" x2="{LEFT + inner}" y1="{top}" y2="{top}"/>'
        f'<line class="axis" x1="{LEFT}" x2="{LEFT + inner}" y1="{low}" y2="{low}"/>'
        f'<text class="tick" x="{LEFT - 8}" y="{top + 4}" text-anchor="end">'
        f"{format_bytes(arena_bytes)}</text></svg>"
    )


def _makers(plan: Plan) -> dict[str, str]:
    """The kernel that fills each buffer."""
    return {name: view.name for view in kernel_views(plan) for name in view.outputs}


def _rectangle(slot: Slot, steps: int, size: int, op: str, colors: dict[str, int]) -> str:
    across, down = (WIDTH - LEFT - 10) / steps, (HEIGHT - TOP - BOTTOM) / size
    x, y = LEFT + slot.first_use * across, TOP + slot.offset * down
    width = max((slot.last_use - slot.first_use + 1) * across - 0.6, 0.8)
    height = max(slot.nbytes * down - 0.6, 0.8)
    title = escape(
        f"{slot.name} of {op}: {format_bytes(slot.nbytes)} at {slot.offset}, "
        f"kernels {slot.first_use} to {slot.last_use}"
    )
    return (
        f'<rect class="c{colors.get(op, 0)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="1.5"><title>{title}</title></rect>'
    )


def _axes(steps: int, size: int) -> str:
    across, low = WIDTH - LEFT - 10, HEIGHT - BOTTOM
    parts = [f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{across}" height="{low - TOP}"/>']
    for part in range(5):
        y = TOP + (low - TOP) * part / 4
        label = "0" if part == 0 else format_bytes(size * part // 4)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + across}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{label}</text>'
        )
    for part in range(9):
        index = round(steps * part / 8)
        x = LEFT + across * index / steps
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{low + 16}" text-anchor="middle">{index}</text>'
        )
    middle = LEFT + across / 2
    parts.append(
        f'<text class="tick" x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">kernel</text>'
    )
    return "".join(parts)
