"""Measures what README.md and docs/performance.md show, one part after the other.

    python bench/peers.py --install llama.cpp openvino onnxruntime vllm mistralrs     # once
    python -m bench.sitting docs/figures.json [--parts qwen3-0.6b/int8 peers/int8 ...]
                            [--binary ik_llama.cpp=ik_llama.cpp/build/bin/llama-server]
    make docs                                                          # writes the pages

Each part goes into the file as soon as it is measured: the file keeps its other parts. So a sitting
that was stopped goes on with `--parts`. Models and artifacts stay in the work folder.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.arguments import at_least
from bench.peers import PEERS, given_binary
from bench.peers import WORK as PEERS_WORK
from bench.processes import ROOT, WORK, ingot_bench, made_model, processors, run_script
from ingot.artifact.host import usable_processors
from ingot.version import __version__

Values = dict[str, Any]

SHAPE = "qwen3-0.6b"  # of all formats, and beside the other runtimes
# Weights of random numbers pay alike, so that measuring them would choose nothing.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "bf16": (),
    "int8": ("--quantize", "int8", "--group-size", "128"),
    "int4": ("--quantize", "int4", "--group-size", "32"),
}  # fmt: skip
PEER_GROUP, LONG_GROUP, STREAM_GROUP = "peers", "long", "streams"
LONG = (4096, 16384)  # tokens of long prompts; others read the first kind
ATTENTION = "paged_attention"  # as its kernels begin, be they fused or not
PARTS = (
    *(f"{SHAPE}/{kind}" for kind in OPTIONS),
    *(f"{PEER_GROUP}/{kind}" for kind in OPTIONS),
    *(f"{LONG_GROUP}/{kind}" for kind in OPTIONS),
    *(f"{STREAM_GROUP}/{kind}" for kind in OPTIONS),
    "qwen2.5-0.5b/bf16",
    "llama-3.2-1b/bf16",
)
PHASES = ("prefill", "decode", "streams")
STREAMS = 16
SHORT = 32  # tokens of each prompt of many at once


@dataclass(frozen=True, slots=True)
class Sitting:
    """Where models and artifacts are, how often a phase is measured, and which peers are binaries,
    as `bench.peers` takes them."""

    work: Path
    rounds: int
    binaries: tuple[tuple[str, Path], ...] = ()

    def measure(self, part: str) -> Values:
        """The figures of a part, and what ran when."""
        group, kind = part.split("/")
        measures = {
            PEER_GROUP: self.peers,
            LONG_GROUP: self.long,
            STREAM_GROUP: partial(self.peers, prompt=SHORT, streams=STREAMS),
        }
        found = measures.get(group, partial(self.model, group))(kind)
        ran = {"date": date.today().isoformat(), "ingot": __version__}
        return {**ran, "python": platform.python_version(), **found}

    def model(self, shape: str, kind: str) -> Values:
        """What a model of that shape does in that format, beside the limits of this machine."""
        artifact = str(self._artifact(shape, kind))
        compiled = run_script(
            "compile_figures", str(made_model(shape, self.work)), artifact, *OPTIONS[kind]
        )
        started = run_script("start_figures", artifact)
        ran = ingot_bench(Path(artifact), "--batch", str(STREAMS), "--rounds", str(self.rounds))
        reads = [phase["limits"]["read_bytes_per_second"] / 1e9 for phase in ran["phases"]]
        return {
            "read_gb_per_second": number(median(reads)),
            **{name: speed(phase) for name, phase in zip(PHASES, ran["phases"], strict=True)},
            "compile_seconds": number(compiled["seconds"]),
            "compile_gb": number(compiled["peak_gb"]),
            "first_token_seconds": number(started["first_token_seconds"]),
            "memory_mb": number(run_script("memory_figures", artifact)["extra_mb"]),
        }

    def peers(self, kind: str, prompt: int = 512, streams: int = 1) -> Values:
        """How many times as fast as each other runtime ingot is, in rounds of the same prompts."""
        model, artifact = made_model(SHAPE, self.work), self._made_artifact(SHAPE, kind)
        out = self.work / f"peers-{kind}-{prompt}-{streams}.json"
        command = [
            sys.executable, "-m", "bench.peers", str(model), f"{kind}={artifact}",
            "--prompt", str(prompt), "--streams", str(streams),
            "--rounds", str(self.rounds), "--json", str(out),
            *(f"--binary={name}={path}" for name, path in self.binaries),
        ]  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True)
        paths = {name: str(path) for name, path in self.binaries}
        return {"times": {
            name: {"version": peer_version(name, paths.get(name)), **ratios}
            for name, ratios in times(json.loads(out.read_text())).items()
        }}  # fmt: skip

    def long(self, kind: str) -> Values:
        """Long prompts and contexts: speeds, shares of the limit, and of them what attention takes;
        and others on the first kind of them."""
        artifact = self._made_artifact(SHAPE, kind)
        found = {}
        for tokens in LONG:
            context = ("--prompt", str(tokens), "--context", str(tokens), "--batch", "1")
            # The first round of a context pays for memory that was never used.
            ran = ingot_bench(artifact, *context, "--ops", "--rounds", "3")
            for name, phase in zip(("prefill", "decode"), ran["phases"], strict=False):
                found[f"{name}_{tokens}"] = {**speed(phase), "attention": attention_of(phase)}
        return {**found, **self.peers(kind, LONG[0])}

    def _artifact(self, shape: str, kind: str) -> Path:
        return self.work / f"{shape}-{kind}.ingot"

    def _made_artifact(self, shape: str, kind: str) -> Path:
        artifact = self._artifact(shape, kind)
        if not artifact.exists():
            model = str(made_model(shape, self.work))
            run_script("compile_figures", model, str(artifact), *OPTIONS[kind])
        return artifact


def times(found: Values) -> dict[str, Values]:
    """By peer: how many times as fast ingot is. Raises ValueError where ingot did not run."""
    results = {result["name"]: result for result in found["results"]}
    if results.pop("ingot", None) is None:
        raise ValueError(f"ingot itself was not measured: {found['not_measured']}")
    return {
        name: {phase: number(result[f"{phase}_ratio"]) for phase in ("prefill", "decode")}
        for name, result in results.items()
    }


def peer_version(name: str, binary: str | None = None) -> str:
    """The package of a peer that is installed, or a peer that is a binary, with its version."""
    if binary is not None:
        done = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True)
        found = re.search(r"version: (\S+)", done.stdout + done.stderr)
        return f"{name} {found[1]}" if found else name
    code = "import sys, importlib.metadata as m; print(sys.argv[1], m.version(sys.argv[1]))"
    command = [str(PEERS_WORK / name / "bin" / "python"), "-c", code, PEERS[name].packages[0]]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def speed(phase: Values) -> Values:
    """A phase's speed, and its share of the limit."""
    return {
        "tokens_per_second": number(phase["tokens_per_second"]),
        "share": number(phase["share"]),
    }


def attention_of(phase: Values) -> float:
    """The share of a phase's time that attention takes."""
    seconds = {True: 0.0, False: 0.0}
    for kernel in phase["kernels"]:
        seconds[kernel["kernel"].startswith(ATTENTION)] += kernel["seconds"]
    return number(seconds[True] / sum(seconds.values()))


def number(value: float) -> float:
    """With four digits: more would be noise."""
    return float(f"{value:.4g}")


def this_machine() -> Values:
    return {"processor": processors()[0], "cores": usable_processors()}


def begun(file: Path, machine: Values) -> Values:
    """The figures that the file has. Raises ValueError for those of another machine."""
    if not file.exists():
        name = f"{machine['cores']} cores of {machine['processor']}"
        return {"machine": {"name": name, **machine}, "parts": {}}
    try:
        figures: Values = json.loads(file.read_text())
        there = {key: figures["machine"].get(key) for key in machine}
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} has no figures of a sitting") from error
    if there != machine:
        raise ValueError(f"{file} has figures of {there}, and this is {machine}: remove it first")
    return figures


def merged(figures: Values, part: str, found: Values) -> Values:
    """The figures with one part new, and all parts in their order."""
    parts = {**figures["parts"], part: found}
    return {**figures, "parts": {name: parts[name] for name in PARTS if name in parts}}


def main(argv: list[str] | None = None) -> int:
    """Writes the file; 2 for one of another machine, 1 if a part cannot be measured. What was
    measured before it stays in the file."""
    args = _parser().parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    try:
        figures = begun(args.out, this_machine())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.machine:
        figures["machine"]["name"] = args.machine
    sitting = Sitting(args.work, args.rounds, tuple(args.binary))
    for part in args.parts:
        print(f"{part} ...", file=sys.stderr, flush=True)
        try:
            figures = merged(figures, part, sitting.measure(part))
        except (ValueError, subprocess.CalledProcessError) as error:
            print(f"error: {part} was not measured: {error}", file=sys.stderr)
            return 1
        args.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    doc = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m bench.sitting", description=doc)
    parser.add_argument("out", metavar="OUT.json", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART",
                        help=f"default: all of {', '.join(PARTS)}")  # fmt: skip
    parser.add_argument("--rounds", type=at_least(1), default=5,
                        help="of every phase and every prompt")  # fmt: skip
    parser.add_argument("--machine", help="what the pages call it: '2 cores of a Zen 4 server'")
    parser.add_argument("--binary", type=given_binary, action="append", default=[],
                        metavar="NAME=PATH",
                        help="the llama-server of ik_llama.cpp")  # fmt: skip
    parser.add_argument("--work", type=Path, default=WORK)
    return parser


if __name__ == "__main__":
    sys.exit(main())
