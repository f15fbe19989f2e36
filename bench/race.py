"""The race at equal quality: our fastest format that loses no more than a peer's does.

    python -m bench.race MODEL.gguf --name NAME --json docs/race.json --llama PYTHON
                         [--curve docs/quantization_curve.json] [--openvino PYTHON]
                         [--points int8,int4] [--rounds N] [--prompt N] [--tokens N]

MODEL is a GGUF file in float whose curve `bench.curve` has measured under that name; the curve says
what each point loses. llama.cpp runs its types, made with an importance matrix where one helps, and
OpenVINO the files of them that it reads. What OpenVINO loses by rounding rows is not counted: it
gets the KL of the file in llama.cpp.

All points stay open, and each gets the same prompt round by round, as `bench.peers` does it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from operator import truediv
from pathlib import Path
from statistics import mean, median
from typing import Any

import ingot
from bench.arguments import at_least
from bench.curve import LONGEST, OURS, UNTOLD, Figures, made_by_llama
from bench.figure import machine
from bench.peers import PAUSE, WORKERS, Contender, compete, results
from ingot.artifact.host import usable_processors
from ingot.errors import IngotError

Values = dict[str, Any]

THEIRS = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_NL", "Q4_0")
PHASES = "prefill", "decode"
READ_BY_OPENVINO = ("Q8_0", "Q6_K", "Q4_K_M", "Q4_0")


@dataclass(frozen=True, slots=True)
class Point:
    """A format of a runtime: what it loses in nats a token, and how it is run."""

    runtime: str
    name: str
    kl: float
    contender: Contender

    def times(self) -> tuple[list[float], list[float]]:
        """Seconds of each round: of the prompt, and of a token that follows."""
        rounds = self.contender.rounds
        return [r[0] for r in rounds], [mean(r[1:]) for r in rounds]


class Course:
    """A model, what its points lose, and a folder for the files that are run."""

    def __init__(self, model: Path, lost: Mapping[tuple[str, str], float], folder: Path) -> None:
        self.model, self.lost, self.folder = model, lost, folder

    def ours(self, names: Sequence[str], options: Sequence[str]) -> Iterator[Point]:
        """Our points with these names, as far as the curve has them."""
        for name, asked in OURS.items():
            if name in names and ("ingot", name) in self.lost:
                out = self.folder / f"{name}.ingot"
                ingot.compile(self.model, out, quality=False, max_model_len=2 * LONGEST, **asked)
                yield self._point("ingot", name, Path(sys.executable), "run_ingot.py", out, options)

    def theirs(self, llama: Path, openvino: Path | None, options: Sequence[str]) -> Iterator[Point]:
        """Points of llama.cpp, and of OpenVINO on the files of some."""
        files = made_by_llama(llama, self.model, THEIRS, self.folder)
        for name, file in files.items():
            yield self._point("llama.cpp", name, llama, "run_llama_cpp.py", file, options)
            if openvino is not None and name in READ_BY_OPENVINO:
                yield self._point("openvino", name, openvino, "run_openvino.py", file, options)

    def _point(
        self, runtime: str, name: str, python: Path, worker: str, file: Path, options: Sequence[str]
    ) -> Point:
        whose = "ingot" if runtime == "ingot" else "llama.cpp"
        command = [str(python), str(WORKERS / worker), str(file), *options]
        return Point(runtime, name, self.lost[whose, name], Contender(runtime, name, command))


def lost(points: Sequence[Values]) -> dict[tuple[str, str], float]:
    """Mean KL of each point of a curve; of a type that an importance matrix helps, with one."""
    return {
        (p["runtime"], p["name"]): p["kl"]
        for p in points
        if p["runtime"] == "ingot" or p["importance"] != (p["name"] in UNTOLD)
    }


def curve_of(figures: Figures, needed: Sequence[str]) -> dict[tuple[str, str], float]:
    """What each point of a model loses. Raises ValueError where it has no curve, or a type of
    llama.cpp that races is not on it."""
    if figures.name not in figures.models:
        raise ValueError(f"{figures.file} has no curve of {figures.name}")
    found = lost(figures.models[figures.name]["points"])
    if missing := [name for name in needed if ("llama.cpp", name) not in found]:
        raise ValueError(f"the curve of {figures.name} lacks {', '.join(missing)} of llama.cpp")
    return found


def against(peer: Point, ours: Sequence[Point]) -> Values:
    """Our fastest points that lose no more than a peer's, for prompts and for decoding, and how
    much faster they are, round by round. Empty where we have none."""
    found: Values = {}
    equal = [point for point in ours if point.kl <= peer.kl]
    for place, phase in enumerate(PHASES):
        if equal:
            best = min(equal, key=lambda point: median(point.times()[place]))
            ratio = median(map(truediv, peer.times()[place], best.times()[place]))
            found |= {phase: best.name, f"{phase}_ratio": round(ratio, 3)}
    return found


def raced(points: Sequence[Point], prompt_tokens: int) -> list[Values]:
    """All points that ran, with their speeds, and a peer's with what of ours is its equal."""
    ran = [point for point in points if point.contender.rounds]
    ours = [point for point in ran if point.runtime == "ingot"]
    speeds = results([point.contender for point in ran], prompt_tokens)
    return [
        {
            "runtime": point.runtime, "name": point.name, "kl": point.kl,
            "prefill_tokens_per_second": round(speed.prefill_tokens_per_second, 1),
            "decode_tokens_per_second": round(speed.decode_tokens_per_second, 1),
            **({} if point.runtime == "ingot" else {"ours": against(point, ours)}),
        }
        for point, speed in zip(ran, speeds, strict=True)
    ]  # fmt: skip


def line(point: Values) -> str:
    """A point, as it is shown."""
    ours = point.get("ours", {})
    text = (
        f"{point['runtime']:<10} {point['name']:<10} KL {point['kl']:.4f}"
        f"{point['prefill_tokens_per_second']:>9.0f} prefill"
        f"{point['decode_tokens_per_second']:>8.1f} decode tok/s"
    )
    told = [f"{ours[p]} {ours[f'{p}_ratio']:.2f}x {p}" for p in PHASES if p in ours]
    return text + (f"   ours: {', '.join(told)}" if told else "")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """What the command is given."""
    parser = argparse.ArgumentParser(prog="python -m bench.race")
    parser.add_argument("model", type=Path, help="a GGUF file in float")
    parser.add_argument("--name", required=True, help="of the model in the curve")
    parser.add_argument("--json", type=Path, required=True, help="where the figures go")
    parser.add_argument("--curve", type=Path, default=Path("docs/quantization_curve.json"))
    parser.add_argument("--llama", type=Path, required=True, help="a Python with llama-cpp-python")
    parser.add_argument("--openvino", type=Path, help="a Python with openvino-genai")
    parser.add_argument("--points", default=",".join(OURS), help="of ours, by commas")
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--prompt", type=at_least(1), default=512, help="tokens of the prompt")
    parser.add_argument("--tokens", type=at_least(2), default=32, help="tokens to generate")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Measures and writes; 2 for wrong input."""
    args = arguments(argv)
    try:
        points = curve_of(Figures(args.curve, args.name), THEIRS)
        options = [str(usable_processors()), str(args.prompt + args.tokens), "1"]
        with tempfile.TemporaryDirectory(prefix="ingot-race-") as folder:
            course = Course(args.model, points, Path(folder))
            entered = [
                *course.ours(args.points.split(","), options),
                *course.theirs(args.llama, args.openvino, options),
            ]
            excuses = compete(
                [point.contender for point in entered], rounds=args.rounds,
                prompt_tokens=args.prompt, new_tokens=args.tokens, pause=PAUSE,
            )  # fmt: skip
        found = raced(entered, args.prompt)
        for point in found:
            print(line(point))
        for name, reason in excuses.items():
            print(f"{name:<20} not measured: {reason}")
        models = json.loads(args.json.read_text()) if args.json.exists() else {}
        models[args.name] = {
            "date": date.today().isoformat(), "machine": machine(),
            "prompt": args.prompt, "points": found,
        }  # fmt: skip
        args.json.write_text(json.dumps(models, indent=1) + "\n")
    except (IngotError, OSError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
