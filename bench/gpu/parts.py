"""The parts of a run, as data, in the order in which they run."""

from __future__ import annotations

from dataclasses import dataclass

from bench.gpu.places import LIMITS

BUNDLED = ("shakespeare-bf16", "shakespeare-int8", "shakespeare-int4", "shakespeare-kv8")
FLOATS = ("shakespeare-f32", "shakespeare-f16")
MIXED = ("experts-bf16", "experts-int4", "latent-bf16", "latent-kv8")
# Records of sequences: matrices in cells of 16 tokens, that decay by heads and by key channels.
RECORDS = ("delta-bf16", "mamba2-bf16", "rwkv-bf16")
RECORDS_IN_FULL = ("delta-f32", "rwkv-f32")  # products of three tf32 have the digits of float32
SMALL, LARGE = "qwen3-0.6b", "llama-3.1-8b"
SMALL_ARTIFACTS = (f"{SMALL}-bf16", f"{SMALL}-int4")
# With launches that begin before the one before them ends, beside the same models without.
DEPENDENT = (f"{BUNDLED[0]}-dependent", f"{SMALL_ARTIFACTS[0]}-dependent")
LARGE_ARTIFACTS = (f"{LARGE}-bf16", f"{LARGE}-int4")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run: a process of its own, so that no other part suffers from its end.

    Attributes:
        run: "module:function" of bench.gpu; the function takes the setting and `names`.
        seconds: it is ended after these.
        half: 1 or 2; 0 for both.
        names: of the artifacts that it takes.
        makes: whether it makes these, and does not need them.
    """

    name: str
    run: str
    seconds: float
    half: int = 1
    names: tuple[str, ...] = ()
    makes: bool = False


def of_each(
    name: str, run: str, seconds: float, names: tuple[str, ...], half: int = 1
) -> tuple[Part, ...]:
    """The same part for each artifact."""
    return tuple(Part(f"{name} {each}", run, seconds, half, (each,)) for each in names)


PARTS = (
    Part("environment", "environment:environment", 30, 0),
    Part("copies", "load:copies", 20),
    Part("compile shakespeare", "artifacts:build", 120, 1, (*BUNDLED, *FLOATS), makes=True),
    # What nothing but a card can show comes first.
    *of_each("load", "load:load", 30, (*BUNDLED, *FLOATS)),
    *of_each("rows", "rows:rows", 40, (*BUNDLED, *FLOATS)),
    *of_each("ways", "ways:ways", 40, (*BUNDLED, *FLOATS)),
    *of_each("verify", "parity:verify", 30, (*BUNDLED, *FLOATS)),
    *of_each("cpu", "parity:beside_cpu", 30, BUNDLED),
    *of_each("requests", "requests:requests", 45, BUNDLED),
    Part("compile mixed", "artifacts:build", 90, 1, MIXED, makes=True),
    *of_each("rows", "rows:rows", 30, MIXED),
    *of_each("verify", "parity:verify", 30, MIXED),
    *of_each("requests", "requests:requests", 45, MIXED[::2]),
    *of_each("no compiler", "separate:without_compilers", 30, BUNDLED[:1]),
    Part(LIMITS, f"{LIMITS}:limits", 40, 0),
    Part("compile small", "artifacts:build", 120, 1, SMALL_ARTIFACTS, makes=True),
    *of_each("load", "load:load", 30, SMALL_ARTIFACTS[1:]),
    *of_each("weights", "weights:weights", 30, SMALL_ARTIFACTS[:1]),
    *of_each("rows", "rows:rows", 40, SMALL_ARTIFACTS),
    *of_each("speed", "speed:speed", 60, SMALL_ARTIFACTS),
    *of_each("first token", "separate:first_token", 45, SMALL_ARTIFACTS[:1]),
    *of_each("verify", "parity:verify", 40, SMALL_ARTIFACTS),
    *of_each("sanitizer", "separate:sanitizer", 60, BUNDLED[:1]),
    Part("compile records", "artifacts:build", 120, 1, (*RECORDS, *RECORDS_IN_FULL), makes=True),
    *of_each("rows", "rows:rows", 40, (*RECORDS, *RECORDS_IN_FULL)),
    *of_each("ways", "ways:ways", 40, RECORDS),
    *of_each("verify", "parity:verify", 30, (*RECORDS, *RECORDS_IN_FULL)),
    *of_each("cpu", "parity:beside_cpu", 30, RECORDS_IN_FULL),
    *of_each("requests", "requests:requests", 45, RECORDS[:1]),
    Part("compile dependent", "artifacts:build", 60, 1, DEPENDENT, makes=True),
    *of_each("ways", "ways:ways", 40, DEPENDENT[:1]),
    *of_each("verify", "parity:verify", 30, DEPENDENT[:1]),
    *of_each("speed", "speed:speed", 45, DEPENDENT[1:]),
    # It takes the time that is left.
    *of_each("transformers", "peer:beside_transformers", 150, SMALL_ARTIFACTS[:1]),
    Part("compile large", "artifacts:build", 300, 2, LARGE_ARTIFACTS, makes=True),
    *of_each("speed", "speed:speed", 70, LARGE_ARTIFACTS, 2),
    *of_each("weights", "weights:weights", 60, LARGE_ARTIFACTS[:1], 2),
    *of_each("first token", "separate:first_token", 60, LARGE_ARTIFACTS[:1], 2),
    *of_each("rows", "rows:rows", 40, LARGE_ARTIFACTS, 2),
    *of_each("verify", "parity:verify", 40, LARGE_ARTIFACTS, 2),
    *of_each("transformers", "peer:beside_transformers", 150, LARGE_ARTIFACTS[:1], 2),
)


def parts_of(half: int, parts: tuple[Part, ...] = PARTS) -> tuple[Part, ...]:
    """The parts of a half; all for 0."""
    return tuple(part for part in parts if not half or part.half in (0, half))


def part_named(name: str, parts: tuple[Part, ...] = PARTS) -> Part:
    return next(part for part in parts if part.name == name)
