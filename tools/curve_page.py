"""Writes the tables of docs/quantization_curve.json into docs/quantization.md; `make docs` runs it.

`python -m bench.curve` measures them. The picture is drawn anew where it shows other figures.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.chart import drawn_if_old
from bench.curve_chart import AUTO, LEFT_OUT, MB, draw, is_current

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "quantization_curve.json"
PICTURE = FIGURES.with_suffix(".png")
PAGE = ROOT / "docs" / "quantization.md"
BEGIN, END = "<!-- curve, written by `make docs` -->", "<!-- end of curve -->"
NONE = "–"

Values = dict[str, Any]


def read() -> Values:
    models: Values = json.loads(FIGURES.read_text())
    return models


def with_tables(page: str, models: Values) -> str:
    """The page with its tables as the file has them. Raises ValueError where it has no place."""
    return between(page, BEGIN, END, [_model(name, each) for name, each in models.items()])


def between(page: str, begin: str, end: str, tables: Iterable[str]) -> str:
    """The page with tables between two marks. Raises ValueError where it has none."""
    place = re.compile(f"{begin}.*?{end}", re.S)
    if not place.search(page):
        raise ValueError(f"the page has no place for tables: {begin} ... {end}")
    return place.sub(lambda _: "\n\n".join([begin, *tables, end]), page)


def _model(name: str, figures: Values) -> str:
    """What was measured of a model: a sentence, and two tables."""
    points = figures["points"]
    says = (
        f"**{name}**, dithered: {figures['positions']:,} positions, perplexity "
        f"{points[0]['base_perplexity']:.2f} in float32; {figures['date']}, {figures['machine']}."
    )
    ours = _table("| ingot | MB | mean KL | same top token | perplexity |", _ours(points))
    theirs = [p for p in points if p["runtime"] != "ingot"]
    if not theirs:
        return f"{says}\n\n{ours}"
    head = (
        f"| llama.cpp {theirs[0]['version']} | MB | mean KL | with importance matrix "
        "| same top token | perplexity |"
    )
    return f"{says}\n\n{ours}\n\n{_table(head, _theirs(theirs))}"


def _table(head: str, rows: Iterable[str]) -> str:
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows])


def _ours(points: list[Values]) -> Iterator[str]:
    for p in _by_bytes(p for p in points if p["runtime"] == "ingot"):
        yield f"| {option(p['name'])} | {_mb(p)} | {_kl(p)} | {_top(p)} | {_perplexity(p)} |"


def _theirs(points: list[Values]) -> Iterator[str]:
    """A row a type; the last figures are those with an importance matrix where there is one."""
    told = {p["name"]: p for p in points if p["importance"]}
    for p in _by_bytes(p for p in points if not p["importance"]):
        best = told.get(p["name"], p)
        name = "the file itself, F16" if p["name"] in LEFT_OUT else p["name"]
        yield (
            f"| {name} | {_mb(p)} | {_kl(p)} | {_kl(best) if best is not p else NONE} "
            f"| {_top(best)} | {_perplexity(best)} |"
        )


def _by_bytes(points: Iterable[Values]) -> list[Values]:
    return sorted(points, key=lambda p: (-p["bytes"], p["name"]))


def option(name: str) -> str:
    if name.startswith(AUTO):
        return f"`auto --bits {name.removeprefix(AUTO)}`"
    kind, _, group = name.partition("-g")
    return f"`{kind} --group-size {group}`" if group else f"`{kind}`"


def _mb(p: Values) -> str:
    return f"{p['bytes'] / MB:.1f}"


def _kl(p: Values) -> str:
    return f"{p['kl']:.4f} ± {p['kl_error']:.4f}"


def _top(p: Values) -> str:
    return f"{100 * p['same_top']:.1f} %"


def _perplexity(p: Values) -> str:
    return f"{p['perplexity']:.2f}"


def main() -> int:
    """Writes the page and the picture; 1 where the picture is old and cannot be drawn."""
    models = read()
    PAGE.write_text(with_tables(PAGE.read_text(), models))
    return drawn_if_old(models, PICTURE, is_current, draw)


if __name__ == "__main__":
    sys.exit(main())
