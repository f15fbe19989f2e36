"""Writes the predicted shares of bandwidth into docs/gpu.md; `make docs` runs it.

    python -m bench.gpu.predicted            writes the page from docs/gpu_predicted.json
    python -m bench.gpu.predicted --build    first builds the kernels of all models, and the file

Needs no GPU: all follows from the binaries, the plan and two numbers of each card.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.plans import plan_of
from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.launches import decode_built
from ingot.artifact.occupancy import LATENCY_SECONDS, bytes_needed, share_of_bandwidth
from ingot.artifact.target import Target
from ingot.cli.inspect.gpu import gpu_kernels
from ingot.cli.numbers import format_bytes
from ingot.targets.cuda import toolchain
from ingot.targets.cuda.kind import KIND
from tools.figures_page import table

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, FIGURES = DOCS / "gpu.md", DOCS / "gpu_predicted.json"
BEGIN = "<!-- predicted: written by `make docs` -->"
END = "<!-- end of what is predicted -->"
PLACE = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
LEVEL = "sm_90"
KEYS = 512  # tokens of the sequence
MODELS = {"qwen3-0.6b": "Qwen3-0.6B", "mistral-7b": "Mistral 7B (a layer of Llama 8B is the same)"}
STORED = {"none": "bf16", "int8": "int8", "int4": "int4"}
# What reads memory in a step, in its order.
READS = ("queries, keys, values", "attention", "output projection", "gate and up", "down", "head")
# Cards that run these binaries: bytes a second. Both have the multiprocessors of the table.
CARDS = {"H100": 3.35e12, "H200": ARCHITECTURES[LEVEL].bytes_per_second}

Figures = dict[str, Any]


def predicted(folder: Path, shape: str, stored: str) -> Figures:
    """What the kernels of a model read in a step of one token, and keep under way."""
    target = Target("cuda", LEVEL)
    plan = plan_of(folder, shape, stored, target, "bfloat16")
    (folder / toolchain.LAUNCHES).write_text(KIND.sources(plan, target)[toolchain.LAUNCHES])
    toolchain.build(folder, folder / KIND.kernels, target)
    built = decode_built((folder / KIND.kernels).read_bytes())
    shown = gpu_kernels(plan, built, LEVEL, KEYS)
    rows = [
        {"nbytes": each.nbytes, "programs": each.programs, "under_way": each.under_way,
         "launches": each.launches}
        for each in shown.reads
    ]  # fmt: skip
    named = dict(zip(READS, rows, strict=True))
    return {"built_with": dict(built.built_with), "launches": shown.launches, "reads": named}


def build() -> Figures:
    """The figures of all models in all formats."""
    found: Figures = {}
    for shape in MODELS:
        for stored in STORED:
            with TemporaryDirectory() as folder:
                found.setdefault(shape, {})[stored] = predicted(Path(folder), shape, stored)
    return found


def with_predictions(page: str, figures: Figures) -> str:
    """The page with the table of the figures. Raises ValueError where it has no place."""
    if not PLACE.search(page):
        raise ValueError(f"the page has no place for predictions: {BEGIN} ... {END}")
    text = f"{BEGIN}\n\n{section(figures)}\n\n{END}"
    return PLACE.sub(lambda _: text, page)


def section(figures: Figures) -> str:
    """The table, and what it assumes."""
    architecture = ARCHITECTURES[LEVEL]
    needed = [
        f"{format_bytes(bytes_needed(replace(architecture, bytes_per_second=rate)))} on an {card}"
        for card, rate in CARDS.items()
    ]
    header = ["model, kernel", "reads", "programs", "under way", "launches"]
    header += [f"{card} {name}" for card in CARDS for name in STORED.values()]
    body = table(header, rows(figures))
    marks = re.sub(r"\n\|(---\|)+", "\n|---|" + "---:|" * (len(header) - 1), body, count=1)
    return (
        f"For a sequence of {KEYS} tokens. The first numbers are of weights in bfloat16, the last "
        "ones the most of a card's\nbandwidth that weights in each format can have:\n\n"
        f"{marks}\n\n"
        'These are predictions. "Under way" are the bytes that a multiprocessor has asked for and '
        "not yet got, by the\ntiles that fit its registers and shared memory and by the programs "
        f"of the launch. It needs\n{' and '.join(needed)}, if memory answers in "
        f"{LATENCY_SECONDS * 1e9:.0f} ns, which is assumed."
    )


def rows(figures: Figures) -> Iterator[tuple[str, ...]]:
    for shape, formats in figures.items():
        first = formats["none"]
        blank = ("",) * (len(CARDS) * len(STORED))
        yield (f"**{MODELS[shape]}**", "", "", "", f"**{first['launches']}**", *blank)
        for name in READS:
            read = first["reads"][name]
            yield (
                name, format_bytes(read["nbytes"]), str(read["programs"]),
                format_bytes(read["under_way"]), str(read["launches"]),
                *(share(formats[stored]["reads"][name], rate)
                  for rate in CARDS.values() for stored in STORED),
            )  # fmt: skip


def share(read: Figures, bytes_per_second: float) -> str:
    card = replace(ARCHITECTURES[LEVEL], bytes_per_second=bytes_per_second)
    return f"{share_of_bandwidth(read['nbytes'], read['under_way'], card):.0%}".replace("%", " %")


def main(argv: list[str] | None = None) -> int:
    """Writes the page, and with --build the figures before it."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.predicted")
    parser.add_argument("--build", action="store_true", help="build the kernels and the figures")
    if parser.parse_args(argv).build:
        FIGURES.write_text(json.dumps(build(), indent=1) + "\n")
    PAGE.write_text(with_predictions(PAGE.read_text(), json.loads(FIGURES.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
