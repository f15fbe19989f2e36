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

from bench.chart import plotter, text_in

OURS, THEIRS, TEXT, DIM, GRID = "#2f6f9f", "#6b757d", "#222222", "#666666", "#e9edf0"
LEFT_OUT = ("F16",)  # the file itself loses nothing
AUTO = "auto-"
MB = 1e6

Values = dict[str, Any]
# The name, megabytes and mean KL.
Point = tuple[str, float, float]


def series(figures: Values) -> Iterator[tuple[str, list[Point]]]:
    """The series of a panel, each in the order of bytes."""
    points = [p for p in figures["points"] if p["name"] not in LEFT_OUT]
    ours = [p for p in points if p["runtime"] == "ingot"]
    theirs = [p for p in points if p["runtime"] != "ingot"]
    yield "auto", _sorted(p for p in ours if p["name"].startswith(AUTO))
    yield "one format", _sorted(p for p in ours if not p["name"].startswith(AUTO))
    yield "untold", _sorted(p for p in theirs if not p["importance"])
    yield "told", _sorted(p for p in theirs if p["importance"])


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
    if not any(figures["points"] for figures in models.values()):
        raise ValueError("there are no points to draw")
    pyplot = plotter()
    count = len(models)
    figure, axes = pyplot.subplots(
        1, count, figsize=(5.6 * count, 5.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (name, figures) in zip(axes[0], models.items(), strict=True):
        _panel(axis, name, dict(series(figures)))
    axes[0][0].set_ylabel("mean KL to float32, nats a token", color=TEXT)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(out, dpi=160, facecolor="white",
                   metadata={"Software": None, "Description": described(models)})  # fmt: skip
    pyplot.close(figure)


def _panel(axis: Any, name: str, lines: dict[str, list[Point]]) -> None:
    axis.set_yscale("log")
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
    axis.plot(*_places(lines["auto"]), color=OURS, marker="s", markersize=5.5, linewidth=1.6,
              zorder=3, label="ingot, --quantize auto --bits")  # fmt: skip
    for key, color in (("auto", OURS), ("one format", OURS), ("told", THEIRS)):
        _labels(axis, lines[key], color, below=key != "told")
    _labels(axis, [p for p in lines["untold"] if p[0] not in told], THEIRS, below=False)
    axis.set_xlabel("megabytes, all of an artifact or file", color=DIM, fontsize=9)
    axis.grid(color=GRID, which="both", zorder=0)
    axis.tick_params(colors=DIM, which="both", length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_title(name, loc="left", color=TEXT, fontsize=11, fontweight="bold")


def _places(points: list[Point]) -> tuple[list[float], list[float]]:
    return [mb for _, mb, _ in points], [kl for _, _, kl in points]


def _labels(axis: Any, points: list[Point], color: str, *, below: bool) -> None:
    for name, mb, kl in points:
        axis.annotate(name, (mb, kl), xytext=(-5, -5) if below else (5, 4),
                      textcoords="offset points", ha="right" if below else "left",
                      va="top" if below else "bottom", fontsize=7.5, color=color)  # fmt: skip


def main(argv: list[str]) -> int:
    """Writes the picture; 2 for wrong input."""
    if len(argv) != 2:
        print("usage: python -m bench.curve_chart FIGURES.json OUT.png", file=sys.stderr)
        return 2
    try:
        draw(json.loads(Path(argv[0]).read_text()), Path(argv[1]))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (AttributeError, LookupError, TypeError):
        print(f"error: {argv[0]} has no figures of `bench.curve`", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
