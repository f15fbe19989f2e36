"""Draws what `ingot bench --json` measured: each phase's speed, as a bar inside its limit.

    python bench/chart.py OUT.png bf16.json [int8.json ...]

A figure beside its limit: the light bar is what this machine could do at most, the dark one what
was done.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Draw = Callable[[Any, Path], None]  # figures into a picture
Shows = Callable[[Any, Path], bool]  # whether a picture shows figures
COLORS = {"memory": "#2f6f9f", "arithmetic": "#b5651d"}
FAINT, TEXT, DIM = 0.22, "#222222", "#666666"
KEY = b"tEXtDescription\0"  # the chunk of a PNG that says what it shows


def bars(result: dict[str, Any]) -> list[dict[str, Any]]:
    """A bar a phase: its name, its speed, the limit in the same unit, and what sets the limit."""
    return [
        {
            "name": phase["name"],
            "speed": phase["tokens_per_second"],
            "limit": phase["tokens"] / phase["limit_seconds"],
            "share": phase["share"],
            "bound": phase["bound"],
        }
        for phase in result["phases"]
    ]


def plotter() -> Any:
    """matplotlib's pyplot, with our letters. Raises ValueError where it is not installed."""
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError:
        raise ValueError("matplotlib is not installed: pip install 'ingot-lm[chart]'") from None
    pyplot.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10})
    return pyplot


def text_in(png: Path) -> str:
    """What a picture says that it shows; empty where it says nothing."""
    data = png.read_bytes() if png.exists() else b""
    before, found, after = data.partition(KEY)
    length = int.from_bytes(before[-4:]) - len(KEY.removeprefix(b"tEXt"))
    return after[:length].decode("latin-1") if found else ""


def draw(results: list[dict[str, Any]], out: Path) -> None:
    """Writes the chart, a panel a result."""
    pyplot = plotter()
    rows = [len(result["phases"]) for result in results]
    figure, axes = pyplot.subplots(
        len(results), 1, figsize=(9, 1.0 + 0.52 * sum(rows) + 0.55 * len(rows)), squeeze=False,
        gridspec_kw={"height_ratios": rows}, layout="constrained",
    )  # fmt: skip
    figure.get_layout_engine().set(hspace=0.06)
    for axis, result in zip(axes[:, 0], results, strict=True):
        _panel(axis, result)
    handles = [
        pyplot.Rectangle((0, 0), 1, 1, color=color, label=f"bound by {bound}")
        for bound, color in COLORS.items()
    ]
    handles.append(pyplot.Rectangle((0, 0), 1, 1, color="#888888", alpha=FAINT, label="limit"))
    figure.legend(
        handles=handles, loc="outside lower right", ncols=len(handles), frameon=False, fontsize=9
    )
    figure.savefig(out, dpi=160, facecolor="white", metadata={"Software": None})
    pyplot.close(figure)


def _panel(axis: Any, result: dict[str, Any]) -> None:
    for row, bar in enumerate(bars(result)):
        color = COLORS[bar["bound"]]
        # Phases differ a hundredfold in tokens per second; as shares of their limits they compare.
        axis.barh(row, 100, height=0.62, color=color, alpha=FAINT, linewidth=0)
        axis.barh(row, 100 * bar["share"], height=0.62, color=color, linewidth=0)
        speed = f"{bar['speed']:,.0f}" if bar["speed"] >= 100 else f"{bar['speed']:.1f}"
        inside = bar["share"] > 0.3
        axis.text(
            100 * bar["share"] + (-1 if inside else 1), row, f"{speed} tok/s",
            ha="right" if inside else "left", va="center",
            color="white" if inside else TEXT, fontweight="bold",
        )  # fmt: skip
        limit = f"{100 * bar['share']:.0f} % of {bar['limit']:,.0f}"
        axis.text(102, row, limit, ha="left", va="center", color=DIM, fontsize=9)
    names = [bar["name"] for bar in bars(result)]
    axis.set_yticks(range(len(names)), names, color=TEXT)
    axis.invert_yaxis()
    axis.set_xlim(0, 118)
    axis.set_xticks([])
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_title(_title(result), loc="left", color=TEXT, fontsize=11, fontweight="bold")


def _title(result: dict[str, Any]) -> str:
    limits, quantization = result["limits"], result["quantization"]
    kind = result["dtype"] if quantization == "none" else quantization
    read = limits["read_bytes_per_second"] / 1e9
    return f"{result['model']}, {kind}: {limits['threads']} threads, memory {read:.0f} GB/s"


def read(path: Path) -> dict[str, Any]:
    """A result. Raises ValueError for a file that holds none, OSError for one that is not there."""
    try:
        result = json.loads(path.read_text())
        bars(result), _title(result)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not what `ingot bench --json` writes") from error
    return result


def picture_of_figures(argv: list[str], module: str, holder: str, draw: Draw) -> int:
    """The command `python -m MODULE FIGURES.json OUT.png`; 2 for wrong input. `holder` names what
    has the figures, for a file that has none."""
    if len(argv) != 2:
        print(f"usage: python -m {module} FIGURES.json OUT.png", file=sys.stderr)
        return 2
    try:
        draw(json.loads(Path(argv[0]).read_text()), Path(argv[1]))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (AttributeError, LookupError, TypeError):
        print(f"error: {argv[0]} has no figures of {holder}", file=sys.stderr)
        return 2
    return 0


def drawn_if_old(figures: Any, picture: Path, is_current: Shows, draw: Draw) -> int:
    """Draws a picture anew where it shows other figures; 1 where it cannot be drawn."""
    try:
        if not is_current(figures, picture):
            draw(figures, picture)
    except ValueError as error:
        print(f"{picture.name} shows other figures: {error}", file=sys.stderr)
        return 1
    return 0


def main(argv: list[str]) -> int:
    """Writes the chart; 2 for wrong input."""
    if len(argv) < 2:
        print("usage: python bench/chart.py OUT.png RESULT.json ...", file=sys.stderr)
        return 2
    try:
        draw([read(Path(name)) for name in argv[1:]], Path(argv[0]))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
