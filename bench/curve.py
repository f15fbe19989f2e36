"""Measures the curve of quality over bytes: what each format loses of a model, and what it takes.

    python -m bench.curve MODEL --json OUT.json [--plot OUT.png] [--llama PYTHON]
                          [--name NAME] [--points int8,auto-4.5] [--positions N]

MODEL is a model directory or a GGUF file in float; `bench.dither` makes one. Each point is compiled
into a temporary folder and compared with the model's own numbers in float32, on text of several
kinds that calibrates nothing. With the Python of an environment that has llama-cpp-python,
llama.cpp makes its types of the same GGUF file, without and with an importance matrix from the text
that ours are calibrated with, and is measured on the same tokens.

OUT.json keeps what it has of other models, and of this one the points that are not measured anew:
a run that was stopped goes on with `--points`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import ingot
from bench.chart import plotter
from bench.curve_chart import draw
from bench.curve_scores import Scores
from bench.curve_texts import CALIBRATING, scored, sequences
from bench.figure import machine
from bench.processes import ROOT
from ingot.compiler.tokenizer import load_tokenizer
from ingot.errors import IngotError
from ingot.models.file_names import GGUF
from ingot.models.model_dir import ModelDir
from ingot.version import __version__

Values = dict[str, Any]

KINDS = {"int8": 128, "int6": 32, "int5": 32, "int4": 32}  # and a group that suits them
OURS: Mapping[str, Values] = {
    **{f"int8-g{size}": {"quantize": "int8", "group_size": size} for size in (32, 64)},
    **{f"{kind}-g{size}": {"quantize": kind, "group_size": size} for kind, size in KINDS.items()},
    **{kind: {"quantize": kind} for kind in KINDS},
    **{
        f"auto-{bits:g}": {"quantize": "auto", "bits": bits}
        for bits in (4.4, 4.5, 5.0, 5.5, 6.0, 7.0, 8.0)
    },
}
# Of llama.cpp; F16 is the file itself, and tells how far the two runtimes are apart.
THEIRS = (
    "F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_S", "Q4_0", "IQ4_XS", "IQ4_NL", "Q3_K_M",
)  # fmt: skip
UNTOLD = ("F16", "Q8_0")  # for which an importance matrix changes nothing
LONGEST = 512
SHARING = {"OMP_WAIT_POLICY": "passive"}  # threads that wait leave the processor to other work


class Curve:
    """A model, what it says of the texts in float32, and a folder for what is made meanwhile."""

    def __init__(self, model: Path, folder: Path, positions: int | None = None) -> None:
        self.model, self.folder = model, folder
        self.texts = sequences(load_tokenizer(ModelDir.open(model), None), positions)
        self.bases = [folder / f"{i}.npy" for i in range(len(self.texts))]
        whole = self._compiled({"dtype": "float32"})
        for file, logits in zip(self.bases, self._logits(whole.artifact), strict=True):
            np.save(file, logits)
        shutil.rmtree(whole.artifact)

    def ours(self, name: str) -> Values:
        """A point of ingot."""
        report = self._compiled(OURS[name])
        scores = Scores()
        logits_of = self._logits(report.artifact)
        for tokens, file, logits in zip(self.texts.values(), self.bases, logits_of, strict=True):
            scores.add(tokens, np.load(file, mmap_mode="r"), logits)
        shutil.rmtree(report.artifact)
        return {
            "runtime": "ingot", "name": name, "importance": True, "version": __version__,
            "bytes": report.bytes_total, "weight_bytes": report.weight_bytes,
            "choice": report.choice, **scores.figures(),
        }  # fmt: skip

    def theirs(self, python: Path, names: Sequence[str]) -> Iterator[Values]:
        """Points of llama.cpp, by the Python of its environment."""
        wanted = [(n, told) for n in names for told in (False, True) if not (told and n in UNTOLD)]
        texts = zip(self.texts.values(), map(str, self.bases), strict=True)
        scored = [{"tokens": tokens, "base": base} for tokens, base in texts]
        for point in _by_llama(python, self.model, wanted, self.folder, scored):
            yield {"runtime": "llama.cpp", **point}

    def _compiled(self, options: Values) -> Any:
        # What is measured here need not be measured by the compile as well.
        out = self.folder / "point.ingot"
        return ingot.compile(self.model, out, quality=False, max_model_len=LONGEST, **options)

    def _logits(self, artifact: Path) -> Iterator[np.ndarray]:
        with ingot.LLM(artifact) as llm:
            for tokens in self.texts.values():
                yield llm.logits(tokens)


def made_by_llama(python: Path, model: Path, names: Sequence[str], folder: Path) -> dict[str, Path]:
    """Files of types of llama.cpp, made with an importance matrix where one changes something."""
    points = [(name, name not in UNTOLD) for name in names]
    made = _by_llama(python, model, points, folder, [])
    return {point["name"]: Path(point["file"]) for point in made}


def _by_llama(
    python: Path,
    model: Path,
    points: Sequence[tuple[str, bool]],
    folder: Path,
    texts: Sequence[Values],
) -> Iterator[Values]:
    """What `bench.curve_llama` says of types, without or with an importance matrix."""
    from bench.curve_importance import importance

    np.savez(folder / "importance.npz", **importance(model))
    request = folder / "request.json"
    request.write_text(json.dumps({
        "model": str(model.resolve()), "folder": str(folder), "points": points,
        "importance": str(folder / "importance.npz"), "texts": texts,
    }))  # fmt: skip
    command = [str(python), "-m", "bench.curve_llama", str(request)]
    yield from map(json.loads, _lines(command, folder / "llama.log"))


def _lines(command: Sequence[str], log: Path) -> Iterator[str]:
    """The lines that a command prints. Raises RuntimeError, with its log, if it fails."""
    environment = {**os.environ, **SHARING}
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise RuntimeError(f"{command[0]} fails:\n{log.read_text(errors='replace')[-2000:]}")


class Figures:
    """The figures of a model in a file, which is written after each point."""

    def __init__(self, file: Path, name: str) -> None:
        self.file, self.name = file, name
        self.models: dict[str, Values] = json.loads(file.read_text()) if file.exists() else {}

    def begin(self, curve: Curve) -> None:
        """Says what is measured; points of another text are dropped."""
        texts, positions = [*curve.texts], scored(curve.texts)
        before = self.models.get(self.name, {})
        same = (before.get("measuring"), before.get("positions")) == (texts, positions)
        self.models[self.name] = {
            "date": date.today().isoformat(), "machine": machine(), "calibrating": CALIBRATING,
            "measuring": texts, "positions": positions,
            "points": before["points"] if same else [],
        }  # fmt: skip

    def add(self, point: Values) -> None:
        """Takes a point in place of an older one."""
        points = self.models[self.name]["points"]
        points[:] = [each for each in points if key(each) != key(point)] + [point]
        self.file.write_text(json.dumps(self.models, indent=1) + "\n")


def key(point: Values) -> tuple[str, str, bool]:
    """What tells a point from others."""
    return point["runtime"], point["name"], point["importance"]


def line(point: Values) -> str:
    """A point, as it is shown when it was measured."""
    told = " told" if point["runtime"] != "ingot" and point["importance"] else ""
    return (
        f"{point['runtime'] + ' ' + point['name'] + told:<24}{point['bytes'] / 1e6:>7.1f} MB"
        f"   KL {point['kl']:.5f} ± {point['kl_error']:.5f}"
        f"   top {100 * point['same_top']:.1f} %   perplexity {point['perplexity']:.2f}"
    )


def measured(curve: Curve, python: Path | None, names: Sequence[str]) -> Iterator[Values]:
    """The points with these names; those of llama.cpp only with its Python."""
    for name in OURS:
        if name in names:
            yield curve.ours(name)
    theirs = [name for name in THEIRS if name in names]
    if python is not None and theirs:
        yield from curve.theirs(python, theirs)


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """What the command is given."""
    parser = argparse.ArgumentParser(prog="python -m bench.curve")
    parser.add_argument("model", type=Path, help="a model directory, or a GGUF file in float")
    parser.add_argument("--json", type=Path, required=True, help="where the figures go")
    parser.add_argument("--plot", type=Path, help="where the picture of all its models goes")
    parser.add_argument("--llama", type=Path, help="a Python with llama-cpp-python")
    parser.add_argument("--name", help="of the model in the figures (default: as its file)")
    parser.add_argument("--points", default=",".join((*OURS, *THEIRS)), help="by commas")
    parser.add_argument("--positions", type=int, help="of the text to score (default: all)")
    args = parser.parse_args(argv)
    args.points = args.points.split(",")
    if unknown := [name for name in args.points if name not in (*OURS, *THEIRS)]:
        parser.error(f"unknown points {', '.join(unknown)}; known: {', '.join((*OURS, *THEIRS))}")
    if args.llama and args.model.suffix != GGUF:
        parser.error("--llama needs a GGUF file, from which llama.cpp makes its types")
    return args


def main(argv: Sequence[str]) -> int:
    """Measures and writes; 2 for wrong input."""
    args = arguments(argv)
    try:
        if args.plot:
            plotter()  # hours before it draws
        figures = Figures(args.json, args.name or args.model.stem)
        with tempfile.TemporaryDirectory(prefix="ingot-curve-") as folder:
            curve = Curve(args.model, Path(folder), args.positions)
            figures.begin(curve)
            for point in measured(curve, args.llama, args.points):
                print(line(point), flush=True)
                figures.add(point)
        if args.plot:
            draw(figures.models, args.plot)
    except (IngotError, OSError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
