"""Draws docs/quantization_curve.png: what formats lose over what they take, a panel a model.

    python -m bench.curve_chart docs/quantization_curve.json OUT.png

Up is worse and right is larger, so the better curve is the lower one. A type of llama.cpp is two
points above each other, without and with an importance matrix.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.chart import picture_of_figures, plotter, text_in

OURS, THEIRS, TEXT, DIM, GRID = "#2f6f9f", "#6b757d", "#222222", "#666666", "#e9edf0"
LEFT_OUT = ("F16",)  # the file itself loses nothing
AUTO = "auto-"
MB = 1e6
TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)

Values = dict[str, Any]
# The name, megabytes and mean KL.
Point = tuple[str, float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top
MARK, LETTER, LINE = 6.0, 5.2, 9.0  # sizes in points
# Where a name may stand beside its point, in points: those first that are nearest.
SIDES = ((7, "left"), (-7, "right"))
SHIFTS = [
    *((x, up, side) for up in (5, -5, 0) for x, side in SIDES),
    *((0, up, "center") for up in (-10, 10)),
    *((x, up, side) for up in (14, -14, 24) for x, side in SIDES),
]


def series(figures: Values) -> Iterator[tuple[str, list[Point]]]:
    """The series of a panel, each in the order of bytes."""
    points = [p for p in figures["points"] if p["name"] not in LEFT_OUT]
    ours = [p for p in points if p["runtime"] == "ingot"]
    theirs = [p for p in points if p["runtime"] != "ingot"]
    yield "chosen", _sorted(p for p in ours if not is_one_format(p["name"]))
    yield "one format", _sorted(p for p in ours if is_one_format(p["name"]))
    yield "untold", _sorted(p for p in theirs if not p["importance"])
    yield "told", _sorted(p for p in theirs if p["importance"])


def is_one_format(name: str) -> bool:
    """Whether a point of ours has all matrices in one format: it names its group."""
    return "-g" in name


def _sorted(points: Any) -> list[Point]:
    found = [(p["name"].removeprefix(AUTO), round(p["bytes"] / MB, 1), p["kl"]) for p in points]
    return sorted(found, key=lambda each: (each[1], each[0]))


def described(models: Values) -> str:
    """What the picture shows, as text that is kept in it."""
    return json.dumps({name: dict(series(figures)) for name, figures in models.items()})


def is_current(models: Values, png: Path) -> bool:
    """Whether the picture shows these figures."""
    return text_in(png) == described(models)


def draw(models: Values, out: Path) -> None:
    """Writes the picture. Raises ValueError without matplotlib, or figures."""
    losses = [kl for each in models.values() for _, line in series(each) for _, _, kl in line]
    if not losses:
        raise ValueError("there are no points to draw")
    pyplot = plotter()
    count = len(models)
    figure, axes = pyplot.subplots(
        1, count, figsize=(5.6 * count, 5.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (name, figures) in zip(axes[0], models.items(), strict=True):
        _panel(axis, name, dict(series(figures)))
    axes[0][0].set_yscale("log")
    least, most = min(losses) / 1.3, max(losses) * 1.2
    ticks = [tick for tick in TICKS if least <= tick <= most]
    axes[0][0].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes[0][0].minorticks_off()
    axes[0][0].set_ylim(least, most)
    axes[0][0].set_ylabel("mean KL to float32, nats a token", color=TEXT)
    figure.draw_without_rendering()  # which finds where points lie
    for axis, figures in zip(axes[0], models.values(), strict=True):
        _labels(axis, dict(series(figures)))
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(out, dpi=160, facecolor="white",
                   metadata={"Software": None, "Description": described(models)})  # fmt: skip
    pyplot.close(figure)


def _panel(axis: Any, name: str, lines: dict[str, list[Point]]) -> None:
    told = {kind: kl for kind, _, kl in lines["told"]}
    for kind, mb, kl in lines["untold"]:
        if kind in told:
            axis.plot([mb, mb], [kl, told[kind]], color=THEIRS, linewidth=0.8, zorder=1)
    marks = {
        "untold": {"color": THEIRS, "mfc": "white", "marker": "o", "label": "llama.cpp"},
        "told": {"color": THEIRS, "marker": "o", "label": "llama.cpp, importance matrix"},
        "one format": {"color": OURS, "mfc": "white", "marker": "s", "label": "ingot, one format"},
    }
    for key, look in marks.items():
        axis.plot(*_places(lines[key]), linestyle="", markersize=5.5, zorder=2, **look)
    axis.plot(*_places(lines["chosen"]), color=OURS, marker="s", markersize=5.5, linewidth=1.6,
              zorder=3, label="ingot, formats by measurement")  # fmt: skip
    axis.set_xlabel("megabytes, all of an artifact or file", color=DIM, fontsize=9)
    axis.margins(x=0.14)
    axis.grid(color=GRID, which="both", zorder=0)
    axis.tick_params(colors=DIM, which="both", length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_title(name, loc="left", color=TEXT, fontsize=11, fontweight="bold")


def _places(points: list[Point]) -> tuple[list[float], list[float]]:
    return [mb for _, mb, _ in points], [kl for _, _, kl in points]


def _labels(axis: Any, lines: dict[str, list[Point]]) -> None:
    """Writes names beside points, where they hide neither each other nor points."""
    told = {name for name, _, _ in lines["told"]}
    alone = [point for point in lines["untold"] if point[0] not in told]
    named = [(p, OURS) for p in (*lines["chosen"], *lines["one format"])]
    named += [(p, THEIRS) for p in (*lines["told"], *alone)]
    taken = _drawn(axis, lines)
    for (name, mb, kl), color in named:
        x, y = _place(axis, mb, kl)
        width = LETTER * len(name)
        places = [(*shift, _box(x + shift[0], y + shift[1], width, LINE, shift[2]))
                  for shift in SHIFTS]  # fmt: skip
        across, up, side, box = min(places, key=lambda place: _hidden(place[-1], taken))
        taken.append(box)
        axis.annotate(name, (mb, kl), xytext=(across, up), textcoords="offset points", ha=side,
                      va="center", fontsize=7.5, color=color, in_layout=False)  # fmt: skip


def _drawn(axis: Any, lines: dict[str, list[Point]]) -> list[Box]:
    """What points take, and the lines that join two of a type."""
    told = {name: (mb, kl) for name, mb, kl in lines["told"]}
    found = [
        _box(*_place(axis, mb, kl), MARK, MARK, "center")
        for points in lines.values()
        for _, mb, kl in points
    ]
    for name, mb, kl in lines["untold"]:
        x, top = _place(axis, mb, kl)
        bottom = _place(axis, *told[name])[1] if name in told else top
        found.append((x - 1, bottom, x + 1, top))
    return found


def _place(axis: Any, mb: float, kl: float) -> tuple[float, float]:
    x, y = axis.transData.transform((mb, kl)) * 72 / axis.figure.dpi  # points of type
    return x, y


def _box(x: float, y: float, width: float, height: float, side: str) -> Box:
    left = x - {"left": 0.0, "center": width / 2, "right": width}[side]
    return left, y - height / 2, left + width, y + height / 2


def _hidden(box: Box, taken: list[Box]) -> float:
    """The area that a box shares with others, in square points."""
    return sum(
        max(0.0, min(box[2], other[2]) - max(box[0], other[0]))
        * max(0.0, min(box[3], other[3]) - max(box[1], other[1]))
        for other in taken
    )


def main(argv: list[str]) -> int:
    """Writes the picture; 2 for wrong input."""
    return picture_of_figures(argv, "bench.curve_chart", "`bench.curve`", draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
