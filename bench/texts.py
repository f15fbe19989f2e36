"""How many texts a second become vectors, ours beside other runtimes on the same weights.

    python -m bench.texts MODEL_DIR [--openvino PYTHON] [--rounds N] [--json FILE]
                          [--tokens N] [--batch N]

MODEL_DIR is one of BERT's kind. PyTorch runs it as sentence-transformers does, ONNX Runtime and
OpenVINO an export of it. All stay open in processes of their own, and each gets the same texts
round by round, one after the other, so that what disturbs the machine disturbs all. Texts are
given as tokens: what tokenizers take is not counted. Figures are medians.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import ingot
from bench.arguments import at_least
from bench.figure import machine

WORKER = Path(__file__).with_name("peer_workers") / "run_texts.py"
OURS: Mapping[str, Mapping[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
}
LENGTHS = (16, 64, 256, 0)  # 0: texts of 4 to 256 tokens, mixed
BATCHES = (1, 64)
PAUSE = 0.1  # after which no thread of the last runtime spins any more
NEAR = 2e-3  # how far the numbers of vectors may be apart in float32


def export(model_dir: Path, folder: Path) -> Path:
    """The model as ONNX, by PyTorch's exporter."""
    import torch
    from transformers import AutoModel

    names = ["input_ids", "attention_mask", "token_type_ids"]

    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(
                model_dir, attn_implementation="eager", dtype=torch.float32
            )

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = self.model(**dict(zip(names, given, strict=True)))[0]
            return rows

    ids = torch.ones(2, 8, dtype=torch.int64)
    file = folder / "model.onnx"
    torch.onnx.export(
        Rows().eval(),
        (ids, ids, torch.zeros_like(ids)),
        file,
        input_names=names,
        output_names=["rows"],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in (*names, "rows")},
        dynamo=False,
    )
    return file


class Contender:
    """A runtime in a process of its own."""

    def __init__(self, name: str, command: Sequence[str], stack: ExitStack) -> None:
        self.name = name
        self.process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self.process.kill)
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()) != "ready\n":
            if not line:
                raise RuntimeError(f"{name} did not start")

    def ask(self, texts: list[list[int]]) -> dict[str, Any]:
        """Seconds for some texts, and the beginning of the first vector."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"tokens": texts}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def texts_of(tokens: int, batch: int) -> list[list[int]]:
    """Random texts of a length; of 0 those of mixed lengths."""
    draw = random.Random(f"{tokens} {batch}")
    lengths = [tokens or draw.randint(4, 256) for _ in range(batch)]
    return [[101, *(draw.randint(1000, 29000) for _ in range(n - 2)), 102] for n in lengths]


def measured(
    contenders: Sequence[Contender], tokens: int, batch: int, rounds: int
) -> dict[str, float]:
    """The median seconds of each contender for some texts."""
    texts, found = texts_of(tokens, batch), {each.name: list[float]() for each in contenders}
    for number in range(rounds + 1):
        for each in contenders:
            answer = each.ask(texts)
            time.sleep(PAUSE)
            if number:  # the first warms up
                found[each.name].append(answer["seconds"])
    return {name: median(times) for name, times in found.items()}


def check(contenders: Sequence[Contender]) -> None:
    """Raises RuntimeError where two runtimes in float32 give other vectors."""
    exact = [each for each in contenders if each.name.endswith("float32")]
    vectors = {each.name: each.ask(texts_of(0, 4))["vector"] for each in exact}
    first, *others = vectors.items()
    for name, vector in others:
        if max(abs(a - b) for a, b in zip(first[1], vector, strict=True)) > NEAR:
            raise RuntimeError(f"{name} and {first[0]} give other vectors")


def started(args: argparse.Namespace, folder: Path, stack: ExitStack) -> list[Contender]:
    """Ours in every format, and every other runtime that is there."""
    commands: dict[str, list[str]] = {}
    for name, options in OURS.items():
        out = folder / f"{name}.ingot"
        ingot.compile(args.model, out, **options)
        commands[f"ingot {name}"] = [sys.executable, str(WORKER), "ingot", str(out)]
    file = export(args.model, folder)
    for dtype in ("float32", "bfloat16"):
        commands[f"pytorch {dtype}"] = [
            sys.executable,
            str(WORKER),
            "pytorch",
            str(args.model),
            dtype,
        ]
        if args.openvino:
            commands[f"openvino {dtype}"] = [
                args.openvino,
                str(WORKER),
                "openvino",
                str(file),
                dtype,
            ]
    commands["onnxruntime float32"] = [sys.executable, str(WORKER), "onnxruntime", str(file)]
    return [Contender(name, command, stack) for name, command in commands.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--openvino", metavar="PYTHON")
    parser.add_argument("--rounds", type=at_least(1), default=9)
    parser.add_argument("--tokens", type=at_least(0), action="append", help="0: mixed lengths")
    parser.add_argument("--batch", type=at_least(1), action="append")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cells = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        contenders = started(args, Path(folder), stack)
        check(contenders)
        batches = args.batch or BATCHES
        for tokens in args.tokens or LENGTHS:
            for batch in batches if tokens else batches[1:]:
                seconds = measured(contenders, tokens, batch, args.rounds)
                cells.append({"tokens": tokens, "batch": batch, "seconds": seconds})
                print(_line(cells[-1]), flush=True)
    if args.json:
        told = {"date": f"{date.today()}", "machine": machine(), "cells": cells}
        args.json.write_text(json.dumps(told, indent=1) + "\n")


def _line(cell: dict[str, Any]) -> str:
    """Texts a second of each, and ours beside the best of the others."""
    speeds = {name: cell["batch"] / seconds for name, seconds in cell["seconds"].items()}
    best = max(speed for name, speed in speeds.items() if not name.startswith("ingot"))
    ours = {name: speed for name, speed in speeds.items() if name.startswith("ingot")}
    told = "  ".join(f"{name} {speed:.1f}" for name, speed in speeds.items())
    beside = ", ".join(f"{name} {speed / best:.2f} x" for name, speed in ours.items())
    return f"{cell['tokens'] or 'mixed'} tokens, {cell['batch']} at once: {told}\n   {beside}"


if __name__ == "__main__":
    main()
