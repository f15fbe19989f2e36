"""Writes what was measured on a GPU into docs/gpu.md, between two marks.

    python -m bench.gpu.page gpu-results.json [MORE.json ...]

Of a part that several files have, the last file in which it ran counts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from bench.gpu.results import FAILED, NOT_RUN, OK, SCHEMA, Values
from tools.figures_page import table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
BEGIN = "<!-- measured on a GPU: written by `python -m bench.gpu.page` -->"
END = "<!-- end of what was measured -->"
PLACE = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
NOTHING = """\
**Nothing here has run on a GPU yet.** Kernels are compiled, their machine code is looked at, and
they run in Triton's interpreter on a simulated device. No speed is claimed. What only a card can
show is listed [below](#what-only-a-card-can-show)."""
COMPARED = "transformers"  # the part that has ratios

Parts = dict[str, Values]


def with_results(page: str, files: list[Values]) -> str:
    """The page with what the files of results say. Raises ValueError where it has no place."""
    if not PLACE.search(page):
        raise ValueError(f"the page has no place for results: {BEGIN} ... {END}")
    return PLACE.sub(lambda _: f"{BEGIN}\n\n{section(files)}\n\n{END}", page)


def section(files: list[Values]) -> str:
    """What was measured where and when; that nothing was, where no part ran."""
    parts = merged(files)
    if not any(part["status"] != NOT_RUN for part in parts.values()):
        return NOTHING
    blocks = [origin(files), states(parts), *decodes(parts), *prefills(parts), *others(parts)]
    return "\n\n".join(block for block in blocks if block)


def merged(files: list[Values]) -> Parts:
    """By name, the part of the last file in which it ran."""
    found: Parts = {}
    for results in files:
        if results.get("schema") != SCHEMA:
            raise ValueError(f"results of schema {results.get('schema')}, not {SCHEMA}")
        for part in results["parts"]:
            if part["name"] not in found or part["status"] != NOT_RUN:
                found[part["name"]] = part
    return found


def origin(files: list[Values]) -> str:
    """Card, date and versions."""
    last = next((f for f in reversed(files) if f["card"]), files[-1])
    card, versions = last["card"], last["versions"]
    days = sorted({f["date"] for f in files})
    when = " and ".join(f"{date.fromisoformat(day):%-d %B %Y}" for day in days)
    driver = _figures(files, "environment").get("smi", {}).get("driver_version", "")
    ran = [f"{name} {text}" for name, text in versions.items() if text]
    ran += [f"driver {driver}"] if driver else []
    name = card.get("name", "an unknown card")
    return f"Measured by `bench/gpu_check.sh` on {when} on {name}, with {', '.join(ran)}."


def _figures(files: list[Values], name: str) -> Values:
    figures: Values = merged(files).get(name, {}).get("figures", {})
    return figures


def states(parts: Parts) -> str:
    """How many parts ended how, and which of them failed."""
    by_state = {
        state: [name for name, part in parts.items() if part["status"] == state]
        for state in (OK, FAILED, NOT_RUN)
    }
    text = f"{len(by_state[OK])} of {len(parts)} parts passed."
    for state, said in ((FAILED, "Failed"), (NOT_RUN, "Not run")):
        if by_state[state]:
            text += f" {said}: {', '.join(by_state[state])}."
    return text


def decodes(parts: Parts) -> Iterator[str]:
    """A table of decodes: tokens per second, share of the bandwidth, and beside transformers."""
    rows = []
    for name, part in _named(parts, "speed"):
        beside = parts.get(f"{COMPARED} {name}", {}).get("figures", {}).get("decode", {})
        for batch, found in part["figures"].get("decode", {}).items():
            device = part["figures"].get("parts", {}).get(batch, {})
            rows.append((
                name, batch, f"{found['tokens_per_second']:,.0f} tok/s", percent(found),
                text_of(device.get("graph in ms"), "{:.2f} ms"),
                text_of(beside.get(batch, {}).get("ratio"), "{:.2f}"),
            ))  # fmt: skip
    if rows:
        header = ("model", "sequences", "decode", "of reading the weights", "on the GPU alone",
                  "times transformers")  # fmt: skip
        yield table(header, rows)


def prefills(parts: Parts) -> Iterator[str]:
    rows = []
    for name, part in _named(parts, "speed"):
        if found := part["figures"].get("prefill"):
            speed = f"{found['tokens_per_second']:,.0f} tok/s"
            first = parts.get(f"first token {name}", {}).get("figures", {})
            opened = text_of(first.get("first token in s"), "{:.2f} s")
            rows.append((name, f"{found['tokens']}", speed, percent(found), opened))
    if rows:
        header = ("model", "prompt", "prefill", "of the product rate", "open to first token")
        yield table(header, rows)


def others(parts: Parts) -> Iterator[str]:
    """The limits that the shares are of."""
    found = parts.get("limits", {}).get("figures", {})
    if {"bytes_per_second", "operations_per_second"} <= set(found):
        yield (
            f"In the same run a copy moved {found['bytes_per_second'] / 1e12:.2f} TB/s, read and "
            f"written, and a bfloat16 product of PyTorch reached "
            f"{found['operations_per_second'] / 1e12:.0f} TFLOP/s."
        )


def _named(parts: Parts, kind: str) -> Iterator[tuple[str, Values]]:
    for name, part in parts.items():
        if name.startswith(f"{kind} "):
            yield name.removeprefix(f"{kind} "), part


def percent(found: Values) -> str:
    return text_of(found.get("share"), "{:.0%}").replace("%", " %")


def text_of(value: Any, form: str) -> str:
    return "–" if value is None else form.format(value)


def main(argv: list[str] | None = None) -> int:
    """Writes the page; 2 for files that are no results."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.page", description=_summary())
    parser.add_argument("results", type=Path, nargs="*")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args(argv)
    try:
        files = [json.loads(path.read_text()) for path in args.results]
        args.page.write_text(with_results(args.page.read_text(), files))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"error: {error!r}", file=sys.stderr)
        return 2
    return 0


def _summary() -> str:
    return (__doc__ or "").splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
