"""Draws docs/performance.png: ingot and other runtimes as shares of what the machine can do.

    python -m bench.figures_chart docs/figures.json OUT.png

The others' bars are ingot's share divided by how many times as fast it was in rounds that
alternate, since the machine's speed changes from minute to minute.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from bench.chart import picture_of_figures, plotter, text_in
from bench.sitting import OPTIONS, PEER_GROUP, SHAPE

PHASES = {"prefill": "Prefill of 512 tokens", "decode": "Decode at a context of 512"}
LIMITS = {"prefill": "peak of arithmetic", "decode": "memory bandwidth"}
NAMES = {
    "ingot": "ingot",
    "llama.cpp": "llama.cpp",
    "ik_llama.cpp": "ik_llama.cpp",
    "openvino": "OpenVINO",
    "onnxruntime": "ONNX Runtime",
    "vllm": "vLLM",
    "mistralrs": "mistral.rs",
}
KINDS = {"bf16": "bfloat16", "int8": "int8", "int4": "int4"}
OURS, THEIRS, LIMIT, TEXT, DIM = "#2f6f9f", "#9aa5ad", "#e9edf0", "#222222", "#666666"
GAP = 0.7  # rows between two formats


def bars(figures: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, float]]]:
    """A row for each format and runtime: their names, and the share of the limit by phase."""
    parts = figures["parts"]
    for kind in OPTIONS:
        if f"{SHAPE}/{kind}" not in parts:
            continue
        shares = {phase: parts[f"{SHAPE}/{kind}"][phase]["share"] for phase in PHASES}
        yield kind, "ingot", shares
        peers = parts.get(f"{PEER_GROUP}/{kind}", {"times": {}})
        for name, times in peers["times"].items():
            yield kind, name, {phase: round(shares[phase] / times[phase], 3) for phase in PHASES}


def described(figures: dict[str, Any]) -> str:
    """What the picture shows, as text that is kept in it."""
    return json.dumps(list(bars(figures)))


def is_current(figures: dict[str, Any], png: Path) -> bool:
    """Whether the picture shows these figures."""
    return text_in(png) == described(figures)


def draw(figures: dict[str, Any], out: Path) -> None:
    """Writes the picture. Raises ValueError without matplotlib, or figures of the shape."""
    rows = list(bars(figures))
    if not rows:
        raise ValueError(f"there are no figures of {SHAPE} to draw")
    pyplot = plotter()
    heights = _heights([kind for kind, _, _ in rows])
    figure, axes = pyplot.subplots(
        1, 2, figsize=(7, 1.0 + 0.27 * heights[-1]), sharey=True, layout="constrained"
    )
    for axis, phase in zip(axes, PHASES, strict=True):
        _panel(axis, phase, rows, heights)
    axes[0].set_yticks(heights, [NAMES[name] for _, name, _ in rows], color=TEXT)
    for (kind, name, _), y in zip(rows, heights, strict=True):
        if name == "ingot":
            axes[0].text(-0.42, y, KINDS[kind], transform=axes[0].get_yaxis_transform(),
                         ha="right", va="center", color=TEXT, fontweight="bold")  # fmt: skip
    axes[0].invert_yaxis()
    figure.savefig(out, dpi=200, facecolor="white",
                   metadata={"Software": None, "Description": described(figures)})  # fmt: skip
    pyplot.close(figure)


def _heights(kinds: list[str]) -> list[float]:
    """Where the rows lie: one below the other, with a gap where another format begins."""
    begins = [kind != before for before, kind in pairwise([kinds[0], *kinds])]
    return [row + GAP * gaps for row, gaps in enumerate(accumulate(begins))]


def _panel(axis: Any, phase: str, rows: list[Any], heights: list[float]) -> None:
    for (_, name, shares), y in zip(rows, heights, strict=True):
        share = 100 * shares[phase]
        width = min(share, 100)  # who uses units that the limit leaves out can be beyond it
        axis.barh(y, 100, height=0.74, color=LIMIT, linewidth=0)
        axis.barh(y, width, height=0.74, color=OURS if name == "ingot" else THEIRS, linewidth=0)
        inside = share > 20
        axis.text(width + (-2 if inside else 2), y, f"{share:.0f} %" + " ▸" * (share > 100),
                  ha="right" if inside else "left", va="center", fontsize=9,
                  color="white" if inside and name == "ingot" else TEXT)  # fmt: skip
    axis.set_xlim(0, 101)
    axis.set_xticks([])
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_title(PHASES[phase], loc="left", color=TEXT, fontsize=11, fontweight="bold")
    axis.set_xlabel(f"whole width: {LIMITS[phase]}", loc="left", color=DIM, fontsize=9)


def main(argv: list[str]) -> int:
    """Writes the picture; 2 for wrong input."""
    return picture_of_figures(argv, "bench.figures_chart", "a sitting", draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
