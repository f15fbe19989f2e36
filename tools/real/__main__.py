"""Proves the product on real models, and writes what it found into docs/real_models.md.

    python -m tools.real [--quick] [--cache DIR] [--page FILE]

`make real` runs it. Models come by the names of the packages that carry them. `--quick` takes the
smallest model alone, without a judge, and writes no page: it is what CI runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.real.checks import (
    FORMATS,
    ROOT,
    Findings,
    check_against_judge,
    check_conversations,
    compile_as_user,
)
from tools.real.encoder import TextFindings, prove_vectors
from tools.real.files import MINILM, MODELS, SMOLLM2, FetchError, RealModel, fetch, fetch_folder
from tools.real.page import line_of, write

QUICK = ("as it is", "int4")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.real")
    parser.add_argument("--quick", action="store_true", help="the smallest model, without a judge")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "real")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "real_models.md")
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    try:
        files = {m: fetch(m, args.cache) for m in ((SMOLLM2,) if args.quick else MODELS)}
        folder = None if args.quick else fetch_folder(MINILM, args.cache)
    except FetchError as error:
        print(f"NOT CHECKED on real models: {error}", file=sys.stderr)
        return 0 if args.quick else 2
    findings = [prove(model, file, quick=args.quick) for model, file in files.items()]
    texts = [] if folder is None else [vectors(folder)]
    if not args.quick:
        write(args.page, findings, texts)
    everything: list[Findings | TextFindings] = [*findings, *texts]
    faults = [f"{each.model.name}: {fault}" for each in everything for fault in each.faults]
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def vectors(folder: Path) -> TextFindings:
    """All checks of the model of whole texts."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        found = prove_vectors(MINILM, folder, Path(place))
    for each in found.vectors:
        print(f"{MINILM.name} {each.compiled.format}: cosine {each.least_cosine:.6f}", flush=True)
    return found


def prove(model: RealModel, file: Path, *, quick: bool) -> Findings:
    """All checks of a model, whose artifacts lie beside its file meanwhile."""
    found = Findings(model)
    with tempfile.TemporaryDirectory(dir=file.parent) as place:
        folder = Path(place)
        for format in QUICK if quick else FORMATS:
            out = folder / f"{format.replace(' ', '-')}.ingot"
            try:
                found.compiled.append(compile_as_user(file, out, format))
            except AssertionError as error:
                found.faults.append(f"{format} does not compile: {error}")
                continue
            print(line_of(model, found.compiled[-1]), flush=True)
        if not quick and found.compiled:
            check_against_judge(found, file, folder)
        if model.chats and found.compiled:
            check_conversations(found, found.compiled[0].artifact)
            for question, answer in found.answers:
                print(f"  {question} {answer!r}")
    return found


if __name__ == "__main__":
    sys.exit(main())
