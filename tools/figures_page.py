"""Writes the figures of docs/figures.json into the pages that show them; `make docs` runs it.

`python -m bench.sitting` measures them. The picture is drawn anew where it shows other figures.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

from bench.__main__ import COMPILE_GB, COMPILE_SECONDS, MEMORY_MB
from bench.chart import drawn_if_old
from bench.figures_chart import KINDS, NAMES, draw, is_current
from bench.sitting import LONG, LONG_GROUP, OPTIONS, PEER_GROUP, SHAPE, STREAM_GROUP, STREAMS

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures.json"
PICTURE = ROOT / "docs" / "performance.png"
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
BEGIN, END = "<!-- figures: {}, written by `make docs` -->", "<!-- end of figures -->"
PLACE = re.compile(BEGIN.format(r"(\w+)") + ".*?" + END, re.S)
MODELS = {SHAPE: "Qwen3-0.6B", "qwen2.5-0.5b": "Qwen2.5-0.5B", "llama-3.2-1b": "Llama-3.2-1B"}
ROWS = {
    "prefill": "prefill of 512 tokens", "decode": "decode, context 512",
    "streams": f"decode, {STREAMS} at once",
}  # fmt: skip
# Where a row has its ratios: the group of parts, and the phase.
RACES = {
    "prefill": (PEER_GROUP, "prefill"),
    "decode": (PEER_GROUP, "decode"),
    "streams": (STREAM_GROUP, "decode"),
}
NONE = "–"
NO_FIGURES = "Nothing is measured yet."

Figures = dict[str, Any]


def read() -> Figures:
    figures: Figures = json.loads(FIGURES.read_text())
    return figures


def with_figures(page: str, figures: Figures) -> str:
    """The page with its figures as the file has them. Raises ValueError where it has no place."""
    if not PLACE.search(page):
        raise ValueError(f"the page has no place for figures: {BEGIN.format('NAME')} ... {END}")

    def block(place: re.Match[str]) -> str:
        if place[1] not in BLOCKS:
            raise ValueError(f"{place[1]} is none of {', '.join(BLOCKS)}")
        return f"{BEGIN.format(place[1])}\n\n{BLOCKS[place[1]](figures)}\n\n{END}"

    return PLACE.sub(block, page)


def claims(figures: Figures) -> str:
    """What the readme says first."""
    rows = [
        (f"{phase}, beside the best of {listed(others(figures, PEER_GROUP))}", span(best))
        for phase in ("decode", "prefill")
        if (best := best_times(figures, phase))
    ]
    if ours := figures["parts"].get(f"{SHAPE}/bf16"):
        rows += [
            ("decode in bfloat16, of the memory limit", percent(ours["decode"])),
            ("prefill in bfloat16, of the arithmetic limit", percent(ours["prefill"])),
            ("process start to first token, bfloat16", milliseconds(ours)),
        ]
    return table((f"{MODELS[SHAPE]}, {figures['machine']['name']}", ""), rows)


def models(figures: Figures) -> str:
    """Every model and format that was measured."""
    header = (
        "measured as", "weights", "decode", "of the memory limit", "prefill",
        "of the arithmetic limit", "process start to first token",
    )  # fmt: skip
    rows = []
    for name, part in figures["parts"].items():
        shape, kind = name.split("/")
        if shape in MODELS:
            speeds = [f(part[phase]) for phase in ("decode", "prefill") for f in (speed, percent)]
            rows.append((MODELS[shape], KINDS[kind], *speeds, milliseconds(part)))
    return "\n\n".join((table(header, rows), *memory_changes(figures)))


def memory_changes(figures: Figures) -> Iterator[str]:
    """A word on rows that were measured while memory was unequally fast."""
    bandwidths = ends(part["read_gb_per_second"] for part in measured_alone(figures))
    if bandwidths and bandwidths[-1] > 1.2 * bandwidths[0]:
        slow, fast = bandwidths
        yield (
            f"Memory gave {slow:.0f} GB/s in some rows and {fast:.0f} GB/s in others: compare "
            "shares, not speeds."
        )


def measured_alone(figures: Figures) -> list[Figures]:
    return [part for part in figures["parts"].values() if "read_gb_per_second" in part]


def phases(figures: Figures) -> str:
    """Each phase of the first model beside its limit and the other runtimes."""
    peers, rows = others(figures), []
    header = ("", "ingot", "limit", "of the limit", *(f"times {NAMES[name]}" for name in peers))
    for kind in OPTIONS:
        ours = figures["parts"].get(f"{SHAPE}/{kind}", {})
        for phase in (phase for phase in ROWS if phase in ours):
            found = ours[phase]
            group, key = RACES[phase]
            times = figures["parts"].get(f"{group}/{kind}", {}).get("times", {})
            beside = (ratio(times.get(name, {}).get(key)) for name in peers)
            rows.append((f"{KINDS[kind]}, {ROWS[phase]}", *limited(found), *beside))
    return table(header, rows)


def long(figures: Figures) -> str:
    """Long prompts and contexts of the first model beside their limits and the other runtimes."""
    peers = others(figures)
    header = (
        "", "ingot", "limit", "of the limit", "attention's share of the time",
        *(f"times {NAMES[name]}" for name in peers),
    )  # fmt: skip
    texts = {"prefill": "prefill of {:,} tokens", "decode": "decode, context {:,}"}
    rows = []
    for kind, (phase, text), tokens in product(OPTIONS, texts.items(), LONG):
        part = figures["parts"].get(f"{LONG_GROUP}/{kind}", {})
        if found := part.get(f"{phase}_{tokens}"):
            times = part["times"] if tokens == LONG[0] else {}
            beside = (ratio(times.get(name, {}).get(phase)) for name in peers)
            cells = (*limited(found), f"{100 * found['attention']:.0f} %")
            rows.append((f"{KINDS[kind]}, {text.format(tokens)}", *cells, *beside))
    return table(header, rows) if rows else NO_FIGURES


def origin(figures: Figures) -> str:
    """When and where all of it was measured, and what has no place in the table."""
    if not figures["parts"]:
        return NO_FIGURES
    parts = list(figures["parts"].values())
    days = [day(each) for each in ends(part["date"] for part in parts)]
    when = f"from {' to '.join(days)}" if len(days) > 1 else f"on {''.join(days)}"
    memory = ends(part["read_gb_per_second"] for part in measured_alone(figures))
    text = f"Measured {when} on {figures['machine']['name']} ({figures['machine']['processor']})"
    if memory:
        text += f", while its memory gave {' to '.join(f'{each:.0f}' for each in memory)} GB/s"
    ran = {f"ingot {part['ingot']}": None for part in parts}
    ran |= {f"Python {part['python']}": None for part in parts}
    beside = (times for part in parts for times in part.get("times", {}).values())
    ran |= {times["version"]: None for times in beside if "version" in times}
    notes = {part["note"]: None for part in parts if "note" in part}
    measured = " ".join((f"{text}, with {', '.join(ran)}.", *notes))
    return "\n\n".join((measured, *costs(figures)))


def costs(figures: Figures) -> Iterator[str]:
    """What a compile and a process of the first model take, beside what is allowed."""
    if ours := figures["parts"].get(f"{SHAPE}/bf16"):
        yield (
            f"In bfloat16, a process has its first token {milliseconds(ours)} after its start, and "
            f"needs {ours['memory_mb']:.0f} MB ({MEMORY_MB:.0f} are allowed) beyond its weights, "
            f"keys and values. A compile takes {ours['compile_seconds']:.1f} s and at most "
            f"{ours['compile_gb']:.1f} GB ({COMPILE_SECONDS[SHAPE]:.0f} s and "
            f"{COMPILE_GB[SHAPE]:.0f} GB are allowed)."
        )


BLOCKS: dict[str, Callable[[Figures], str]] = {
    "claims": claims, "models": models, "phases": phases, "long": long, "origin": origin,
}  # fmt: skip


def others(figures: Figures, group: str = "") -> list[str]:
    """The runtimes that have figures beside ours in the parts of that group, or in any."""
    parts = (part for name, part in figures["parts"].items() if name.startswith(group))
    found = {name for part in parts for name in part.get("times", ())}
    return [name for name in NAMES if name in found]


def listed(peers: Sequence[str]) -> str:
    """Their names as a sentence has them: "a, b and c"."""
    *first, last = (NAMES[name] for name in peers)
    return f"{', '.join(first)} and {last}" if first else last


def best_times(figures: Figures, phase: str) -> list[float]:
    """Of each format: how many times as fast ingot is as the best other."""
    parts = figures["parts"].items()
    peers = [part["times"].values() for name, part in parts if name.startswith(PEER_GROUP)]
    return [min(times[phase] for times in found) for found in peers if found]


def span(values: Iterable[float]) -> str:
    return f"{' to '.join(dict.fromkeys(f'{each:.1f}' for each in ends(values)))} times as fast"


def ends(values: Iterable[Any]) -> list[Any]:
    """The least and the greatest; once if they are the same."""
    found = sorted(set(values))
    return [found[0], found[-1]][: len(found)] if found else []


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(header)
    lines = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    first, *others = (line.replace("|  |", "| |").replace("|  ", "| ") for line in lines)
    return "\n".join((first, f"|{'---|' * len(head)}", *others))


def speed(phase: Figures) -> str:
    value = phase["tokens_per_second"]
    return f"{value:,.0f} tok/s" if value >= 100 else f"{value:.1f} tok/s"


def percent(phase: Figures) -> str:
    return f"{100 * phase['share']:.0f} %"


def limited(phase: Figures) -> tuple[str, str, str]:
    """A speed, its limit, and the one as a share of the other."""
    limit = {"tokens_per_second": phase["tokens_per_second"] / phase["share"]}
    return speed(phase), speed(limit), percent(phase)


def ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def milliseconds(part: Figures) -> str:
    seconds = part.get("first_token_seconds")
    return NONE if seconds is None else f"{1000 * seconds:.0f} ms"


def day(iso: str) -> str:
    return f"{date.fromisoformat(iso):%-d %B %Y}"


def main() -> int:
    """Writes the pages and the picture; 1 where the picture is old and cannot be drawn."""
    figures = read()
    for page in PAGES:
        page.write_text(with_figures(page.read_text(), figures))
    return drawn_if_old(figures, PICTURE, is_current, draw)


if __name__ == "__main__":
    sys.exit(main())
