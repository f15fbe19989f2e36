"""An artifact made by hand around `fake_kernels.c`, and the same model in numpy."""

from __future__ import annotations

import hashlib
import json
import subprocess
from functools import cache, partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from ingot.artifact.codec import encode_plan
from ingot.artifact.formats import Format
from ingot.artifact.golden import GoldenModel
from ingot.artifact.manifest import (
    FORMAT_VERSION,
    Manifest,
    ModelInfo,
    Numerics,
    ProgramEntry,
    TargetEntry,
)
from ingot.artifact.plan import Buffer, Limits, MemoryPlan, Plan
from ingot.artifact.programs import HIDDEN, STEP, Program
from ingot.artifact.select import ABI
from ingot.artifact.spec import Array, Spec, State
from ingot.artifact.writer import ArtifactWriter
from tests.runtime.fake_tokenizer import tokenizer_files
from tests.support.made_once import made_once

NO_PLAN = 0xFA4E0F0000000BAD  # what kernels say before they are given a plan
VOCAB, PAGE_SIZE, HEAD, ARENA_BYTES, SCALE = 320, 4, 2, 4096, 8.0
NAN_TOKEN, EOS = 317, 319
CRASH_TOKEN, HANG_TOKEN = 316, 315
DANGER = (f"-DDANGER -DCRASH_TOKEN={CRASH_TOKEN} -DHANG_TOKEN={HANG_TOKEN}").split()
F32 = Format("float32")
LIMITS = Limits(
    max_model_len=96,
    max_num_seqs=6,
    max_num_batched_tokens=24,
    max_logit_rows=10,
    page_size=PAGE_SIZE,
)
PAGE_BYTES = 2 * PAGE_SIZE * HEAD * 4
HEADERS = Path(__file__).parents[2] / "ingot" / "targets" / "cpu" / "kernels"
SOURCE = Path(__file__).with_name("fake_kernels.c")
KERNELS, PLAN = "targets/cpu-portable/kernels.so", "targets/cpu-portable/plan.json"
HIDDEN_KERNELS = "targets/cpu-portable/hidden/kernels.so"
HIDDEN_PLAN = "targets/cpu-portable/hidden/plan.json"
WEIGHTS = "weights/cpu-float32.safetensors"


RECORDS = (
    State(name="record", kind="slotted", format=F32, record=(1, 2)),
    State(name="tail", kind="slotted", format=F32, record=(1, 1)),
)


def make_plan(
    limits: Limits = LIMITS,
    windows: tuple[int, ...] = (0,),
    program: Program = STEP,
    records: tuple[State, ...] = (),
) -> Plan:
    """The plan; `windows` has that of every layer. The kernels use the states of the first, and
    `records`. Rows of any program are those logits."""
    states = tuple(
        State(name=f"{kind}_cache_{layer}", format=F32, record=(1, HEAD), window=window)
        for layer, window in enumerate(windows)
        for kind in "kv"
    )
    (output,) = program.outputs
    logits = Array(name=output.name, dtype="float32", shape=("R", VOCAB))
    return Plan(
        limits=limits,
        spec=Spec(
            inputs=program.inputs_for(*{s.kind for s in (*states, *records)}),
            states=(*states, *records),
            outputs=(logits,),
        ),
        buffers=(
            Buffer(name="scale", format=F32, shape=(16,), kind="weight"),
            Buffer(name="unused.weight", format=F32, shape=(64, 16), kind="weight"),
        ),
        instructions=(),
        memory=MemoryPlan(arena_bytes=ARENA_BYTES, slots=()),
    )


def make_manifest(
    limits: Limits = LIMITS,
    requires: tuple[str, ...] = (),
    quantization: str = "none",
    *,
    hidden: bool = False,
) -> Manifest:
    programs = {"step": ProgramEntry(plan=PLAN, kernels=KERNELS)}
    if hidden:
        programs["hidden"] = ProgramEntry(plan=HIDDEN_PLAN, kernels=HIDDEN_KERNELS)
    return Manifest(
        format=FORMAT_VERSION,
        ingot_version="0.1.0",
        model=ModelInfo(
            name="fake",
            architecture="FakeForCausalLM",
            vocab_size=VOCAB,
            num_layers=1,
            num_parameters=1040,
            bos_token_ids=(318,),
            eos_token_ids=(EOS,),
            kv_bytes_per_token=PAGE_BYTES // PAGE_SIZE,
        ),
        limits=limits,
        numerics=Numerics(dtype="float32", quantization=quantization, tolerance=1e-4),
        targets=(
            TargetEntry(
                name="cpu:portable",
                requires=requires,
                layout="cpu-float32",
                abi=ABI,
                programs=programs,
                core_cache_bytes=256 << 10,
            ),
        ),
        ledger=(),
    )


@cache
def kernels(*flags: str) -> bytes:
    """The compiled `fake_kernels.c`; `-DDEPENDS_ON_BATCH` makes other logits in a batch, and
    DANGER a step that crashes or hangs where a prompt begins with one of those tokens."""
    name = "".join(("fake-kernels", *flags))
    return (made_once(name, partial(_compile_kernels, flags)) / "kernels.so").read_bytes()


def _compile_kernels(flags: tuple[str, ...], folder: Path) -> None:
    values = {
        "ABI": ABI,
        "VOCAB": VOCAB,
        "PAGE_SIZE": PAGE_SIZE,
        "HEAD": HEAD,
        "ARENA_BYTES": ARENA_BYTES,
        "NAN_TOKEN": NAN_TOKEN,
        "NO_PLAN": f"{NO_PLAN:#x}ull",
    }
    defines = [f"-D{name}={value}" for name, value in values.items()]
    options = ["-O1", "-fPIC", "-ffp-contract=off"]
    model, sampler = folder / "model.o", SOURCE.with_name("fake_sampler.cpp")
    subprocess.run(
        ["cc", *options, *defines, *flags, "-c", str(SOURCE), "-o", str(model)], check=True
    )
    # Symbols that are not hidden may keep the loader from ever unloading the library.
    linking = ["-std=c++17", "-fvisibility=hidden", "-shared", "-I", str(HEADERS)]
    out = ["-o", str(folder / "kernels.so")]
    subprocess.run(["c++", *options, *linking, str(sampler), str(model), *out], check=True)


def of_plan(code: bytes, plan: bytes) -> bytes:
    """Those kernels as if they were generated from a plan; none that were are changed."""
    sha256 = hashlib.sha256(plan).hexdigest()
    return code.replace(NO_PLAN.to_bytes(8, "little"), int(sha256[:16], 16).to_bytes(8, "little"))


def weights() -> bytes:
    """A weights file whose header is a multiple of 64 bytes, as is every tensor."""
    scale = np.full(16, SCALE, np.float32)
    tensors = {"scale": scale, "unused.weight": np.arange(1024, dtype=np.float32)}
    data = save(tensors)
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip()
    header += b" " * (-(8 + len(header)) % 64)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def write_fake(
    path: Path,
    *,
    limits: Limits = LIMITS,
    tokenizer: bool = True,
    requires: tuple[str, ...] = (),
    quantization: str = "none",
    files: dict[str, bytes] | None = None,
    windows: tuple[int, ...] = (0,),
    hidden: bool = False,
    slotted: bool = False,
) -> Path:
    """Writes the artifact; `files` adds or replaces some, and `hidden` adds that program.

    With `slotted`, each sequence has a record, too; without `windows`, nothing else.
    """
    flags = (f"-DWINDOW={max(windows)}",) if windows and all(windows) else ()
    flags += ("-DSLOTTED",) * slotted + ("-DUNPAGED",) * (not windows)
    records = RECORDS if slotted else ()
    plan = encode_plan(make_plan(limits, windows, records=records))
    contents = {PLAN: plan, KERNELS: kernels(*flags), WEIGHTS: weights()}
    contents["targets/cpu-portable/source/step.cpp"] = SOURCE.read_bytes()
    contents["golden/golden.json"] = golden()
    contents |= tokenizer_files() if tokenizer else {}
    contents |= files or {}
    contents[KERNELS] = of_plan(contents[KERNELS], contents[PLAN])
    if hidden:
        contents[HIDDEN_PLAN] = encode_plan(make_plan(limits, windows, HIDDEN, records))
        contents[HIDDEN_KERNELS] = of_plan(kernels(*flags), contents[HIDDEN_PLAN])
    with ArtifactWriter(path) as writer:
        for name, data in contents.items():
            writer.write(name, data)
        writer.commit(make_manifest(limits, requires, quantization, hidden=hidden))
    return path


def logits(tokens: list[int], window: int = 0) -> np.ndarray:
    """The fake model's logits at every position: float32 [T, V]."""
    rows = []
    state = 2166136261
    vocab = np.arange(VOCAB, dtype=np.uint32) * np.uint32(2654435761)
    for position, token in enumerate(tokens):
        if window:
            state = 2166136261
            for seen in tokens[max(0, position - window + 1) : position]:
                state = ((state ^ (seen + 1)) * 16777619) & 0xFFFFFFFF
        state = ((state ^ (token + 1)) * 16777619) & 0xFFFFFFFF
        x = np.uint32(state) ^ vocab
        x ^= x >> np.uint32(16)
        x *= np.uint32(0x85EBCA6B)
        x ^= x >> np.uint32(13)
        x *= np.uint32(0xC2B2AE35)
        x ^= x >> np.uint32(16)
        scaled = (x >> np.uint32(8)).astype(np.float32) * np.float32(1 / 16777216)
        rows.append(scaled * np.float32(SCALE))
    return np.array(rows, np.float32)


def logprobs(tokens: list[int]) -> np.ndarray:
    wide = logits(tokens).astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def greedy(tokens: list[int], count: int, window: int = 0) -> list[int]:
    """Greedy continuation, end-of-sequence tokens not looked at."""
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(logits(tokens[-window:], window)[-1].argmax()))
    return tokens[-count:]


@cache
def golden(shift: float = 0.0, tolerance: float = 1e-4) -> bytes:
    """golden.json of two prompts; `shift` is added to the likeliest token of one position."""
    prompts = []
    for tokens in ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9], [27, 18, 28, 18]):
        lp = logprobs(tokens)
        positions = []
        for t, row in enumerate(lp):
            top = [[int(i), float(row[i])] for i in np.argsort(-row)[:8]]
            following = float(row[tokens[t + 1]]) if t + 1 < len(tokens) else None
            positions.append({"token": tokens[t], "top": top, "next": following})
        prompts.append({"positions": positions, "given": len(tokens)})
    prompts[0]["positions"][5]["top"][0][1] += shift
    allowed = {"noise": tolerance / 3, "mean": tolerance, "largest": tolerance, "kl": tolerance}
    info = make_manifest().model
    model = {field: getattr(info, field) for field in GoldenModel.__struct_fields__}
    tolerances = dict.fromkeys(("float32", "int8-g128"), allowed)
    content = {"format": 2, "model": model, "tolerances": tolerances, "prompts": prompts}
    return json.dumps(content).encode()
