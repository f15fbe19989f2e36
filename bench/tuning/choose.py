"""Chooses a tile for each place by what was timed, and writes the table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.tuning.timing import Timed
from ingot.targets.cuda.tiles import Tile, TileKey

GAIN = 0.98  # of the default's time, at most, that another tile must take: times vary by less
OTHER_BITS = "stores other bits than the default: it would add in another order"

Times = Mapping[Tile, Timed]  # of one product


def sound(times: Times, default: Tile) -> dict[Tile, Timed]:
    """With a fault for every tile whose results are not those of the default to the bit."""
    expected = times[default].stored if default in times else ""
    return {
        tile: Timed(fault=OTHER_BITS)
        if expected and not each.fault and each.stored != expected
        else each
        for tile, each in times.items()
    }


def chosen(default: Tile, products: Sequence[Times]) -> Tile | None:
    """The tile that takes the least time in all products of a place; None where none runs in all.

    The times of each product count as shares of its least one, so that no product outweighs
    another. A tile takes the default's place only if it takes GAIN of its time.
    """
    shares: dict[Tile, float] = {}
    common = set.intersection(*({t for t, each in p.items() if not each.fault} for p in products))
    for times in products:
        least = min((times[tile].seconds for tile in common), default=0.0)
        for tile in common:
            shares[tile] = shares.get(tile, 0.0) + times[tile].seconds / least
    if not shares:
        return None
    best = min(shares, key=lambda tile: (shares[tile], tile))
    return default if default in shares and shares[best] > GAIN * shares[default] else best


Key = tuple[str, str, str, str, int]
HEAD = '''"""Tiles that were measured on a card. `python -m bench.tune_cuda` writes this file.

Each line is a place, see `ingot.targets.cuda.tiles.TileKey`, and the tile of it: rows, outputs,
warps, stages. What has no line has its default.{note}
"""

from __future__ import annotations

from collections.abc import Mapping

# The card of each level, and with what it was measured.
MEASURED: Mapping[str, str] = {{{measured}}}
TUNED: Mapping[tuple[str, str, str, str, int], tuple[int, int, int, int]] = {{{tuned}}}
'''
NOTHING = " Nothing has been measured yet."


def merged(
    table: Mapping[Key, tuple[int, int, int, int]], found: Mapping[TileKey, Tile]
) -> dict[Key, tuple[int, int, int, int]]:
    """The table with what was found now. A place that has its default has no line."""
    whole = {key: value for key, value in table.items() if key not in found}
    whole |= {tuple(p): tuple(tile) for p, tile in found.items() if tile != p.default}
    return dict(sorted(whole.items()))


def source(table: Mapping[Key, tuple[int, int, int, int]], measured: Mapping[str, str]) -> str:
    """The table as `ingot/targets/cuda/tuned.py`."""
    return HEAD.format(
        note="" if measured else NOTHING, measured=_lines(measured), tuned=_lines(table)
    )


def _lines(values: Mapping[object, object]) -> str:
    lines = [f"    {_literal(key)}: {_literal(value)},\n" for key, value in sorted(values.items())]
    return "\n" + "".join(lines) if lines else ""


def _literal(value: object) -> str:
    """As the house's formatter writes it."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))})"
    return f'"{value}"' if isinstance(value, str) else repr(value)
