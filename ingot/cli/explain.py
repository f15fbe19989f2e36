"""`ingot explain`: can this model directory be compiled, and what would it need?"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from ingot.artifact.programs import HIDDEN, STEP
from ingot.cli.advice import advice
from ingot.cli.arguments import REVISION, SOURCE, Argument, Arguments
from ingot.cli.built import name_of, shape_of
from ingot.cli.numbers import format_bytes, format_count, human_bytes, human_int
from ingot.cli.output import command, facts, next_step, print_json, show, table
from ingot.errors import ModelDirError, UsageError

if TYPE_CHECKING:
    from ingot.compiler.explain import Explanation
    from ingot.compiler.needs import CacheNeed, Way

TOTAL = "The total has the weights, the cache, and about what a step needs."
RESIDENT = (
    "Resident is what every token needs of the weights. The rest are experts, mapped and read when "
    "a token picks them."
)
ONE_FORMAT = (
    "Matrices as --group-size stores them. Without it, measurement stores each as pays most, in "
    "the same bytes."
)
ARGUMENTS: Arguments = (
    Argument("model MODEL_DIR|NAME", SOURCE.options["help"], nargs="?"),
    Argument("--supported", "list the architectures of config.json that are supported"),
    REVISION,
    Argument(
        "--target NAME",
        "the target that is asked about, as `ingot compile` names them (default: cpu:native)",
        default="cpu:native",
    ),
    Argument(
        "--context N",
        "tokens of a sequence; 32k is 32000, 32K is 32768 (default: as many as the model was made "
        "for)",
        human_int,
        default=0,
    ),
    Argument("--seats N", "sequences at a time (default: 1)", human_int, default=1),
    Argument(
        "--memory SIZE",
        "memory that all of it is to fit, such as 24GB, 24GiB or 24G, which is 24GB (default: what "
        "is free on this host)",
        human_bytes,
    ),
)


def main(args: argparse.Namespace) -> int:
    """Tells whether a model is supported, and what disk and memory it needs; or every reason why
    it is not, and what comes nearest. Reads no weights, and downloads none; needs no PyTorch. Exit
    code 0 if it is supported, 2 if not."""
    if args.supported:
        return list_supported(as_json=args.json)
    if args.model is None:
        raise UsageError("no model", hint=f"See: {command()} explain --help")
    from ingot.artifact.tree import is_artifact

    if is_artifact(Path(args.model)):
        see = f"{command()} inspect {quote(args.model)}"
        raise UsageError(
            f"{args.model} is an artifact, and explain is about model directories",
            hint=f"To see what the artifact holds and needs: {see}",
        )
    from ingot.artifact.host import available_memory
    from ingot.compiler.explain import explain
    from ingot.compiler.needs import Use
    from ingot.compiler.options import CompileOptions
    from ingot.hub.names import model_outline

    memory = available_memory() if args.memory is None else args.memory
    use = Use(context=args.context, seats=args.seats, memory_bytes=memory)
    with model_outline(args.model, args.revision) as model_dir:
        explanation = explain(model_dir, CompileOptions(targets=(args.target,)), use)
    if args.json:
        print_json(explanation)
    else:
        whose = "free on this host" if args.memory is None else "given"
        show(summary(args.model, explanation, args.revision, whose))
    return 0 if explanation.supported else ModelDirError.exit_code


def list_supported(*, as_json: bool) -> int:
    """Prints every architecture, beside the family that builds it."""
    from ingot.compiler.explain import supported

    known = supported()
    if as_json:
        print_json(known)
    else:
        show(table([*known.items()], ("architecture", "family")))
    return 0


def summary(
    model: str, explanation: Explanation, revision: str | None = None, whose: str = "given"
) -> str:
    """The explanation as text; `whose` says where the memory is that it speaks of."""
    verdict = "supported" if explanation.supported else "not supported"
    parts = [
        f"{model}: {verdict}",
        facts((r.about, _with_hint(r.found, r.hint)) for r in explanation.reasons),
        _identity(explanation),
        "\n".join(f"  - {feature}" for feature in explanation.features),
        _needs(explanation, whose) if explanation.ways else "",
    ]
    if explanation.supported:
        option = ("--revision", revision) if revision else ()
        parts.append(next_step("compile", model, *option, *explanation.compile_options))
    return "\n\n".join(part for part in parts if part)


def _with_hint(found: str, hint: str) -> str:
    return f"{found}\n{hint}" if hint else found


def _identity(explanation: Explanation) -> str:
    near = explanation.nearest
    rows = (
        ("architecture", explanation.architecture or "none named"),
        ("family", explanation.family),
        ("nearest", near),
        ("differing", near and (", ".join(explanation.differing) or "none of its keys")),
        ("absent", ", ".join(explanation.absent)),
        ("parameters", explanation.ways and _parameters(explanation)),
        ("compiled as", explanation.dtype),
        *(("program", _program(name, text)) for name, text in explanation.programs.items()),
        *(("ignored", text) for text in explanation.ignored),
    )
    note = "\n  Equal keys would not make it one: what a model computes is in its code."
    return facts((name, value) for name, value in rows if value) + (note if near else "")


def _program(name: str, meaning: str) -> str:
    option = f"; --programs {STEP.name},{name}" if name == HIDDEN.name else ""
    return f"{name} {meaning}{option}"


def _parameters(explanation: Explanation) -> str:
    whole, active = explanation.num_parameters, explanation.active_parameters
    text = format_count(whole)
    return text if active == whole else f"{text}, of which {format_count(active)} compute a token"


def _needs(explanation: Explanation, whose: str) -> str:
    """Table of the memory for each way to store the model, and which do not fit."""
    known = explanation.memory_bytes is not None
    ways = [way for way in explanation.ways if not way.refused]
    fits = ("fits",) if known else ()
    experts = ("resident",) if _has_experts(explanation) else ()
    header = ("stored as", "weights", *experts, "total", *fits, "int8 cache", *fits)
    cells = [_row(way, explanation) for way in ways]
    lines = [_about(explanation, whose), table(cells, header)]
    caches = {cache.dtype: cache for way in ways for cache in way.caches}
    rows = [
        (f"KV cache in {name}", _cache(cache, explanation.seats))
        for name, cache in caches.items()
        if cache.bytes_per_token
    ]
    if records := max((cache.bytes_per_sequence for cache in caches.values()), default=0):
        rows.append(("records", _records(records, explanation.seats)))
    if others := [way.name for way in ways if "--dequantize" in way.options]:
        rows.append(
            ("--dequantize", f"needed for {', '.join(others)}: the checkpoint is quantized")
        )
    rows += [("advice", text) for text in [advice(explanation)] if text]
    refused = [way for way in explanation.ways if way.refused]
    rows += [(f"not {way.name}", _with_hint(way.refused, way.hint)) for way in refused]
    lines.append(facts(rows))
    if known and not all(cache.fits for way in ways for cache in way.caches):
        lines += ["", _largest(ways, explanation)]
    if matrices := _matrices(ways):
        lines += ["", matrices]
    return "\n".join(lines)


def _largest(ways: Sequence[Way], explanation: Explanation) -> str:
    """The longest sequences that fit, and the most of them."""
    header = ("stored as", "context", "sequences", "int8 cache: context", "sequences")
    rows = [
        (way.name, *(n for c in way.caches for n in (c.largest_context, c.largest_seats)))
        for way in ways
    ]
    title = f"What fits: the longest context of {_sequences(explanation.seats)}, and the most"
    return f"{title} sequences of {explanation.context} tokens\n{table(rows, header)}"


def _matrices(ways: Sequence[Way]) -> str:
    """Table of how each matrix is stored in the most and in the fewest bits; empty if none is in
    integers. Ways may make one of different matrices."""
    every = [way for way in ways if way.matrices]
    if not every:
        return ""
    integers = [every[0], *([every[-1]] if len(every) > 1 else [])]
    found: dict[tuple[str, str, int], dict[str, str]] = {}
    for way in integers:
        seen = Counter[tuple[str, str]]()
        for matrix in way.matrices:
            key = name_of(matrix), shape_of(matrix)
            found.setdefault((*key, seen[key]), {})[way.name] = matrix.stored
            seen[key] += 1
    rows = [
        (name, shape, *(stored.get(way.name, "-") for way in integers))
        for (name, shape, _), stored in found.items()
    ]
    listed = table(rows, ("matrix", "shape", *(way.name for way in integers)))
    return f"{ONE_FORMAT}\n{listed}"


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count} sequences"


def _cache(cache: CacheNeed, seats: int) -> str:
    all_of_it = format_bytes(cache.cache_bytes - seats * cache.bytes_per_sequence)
    return f"{format_bytes(cache.bytes_per_token)} a token, {all_of_it} for all"


def _records(nbytes: int, seats: int) -> str:
    return (
        f"{format_bytes(nbytes)} a sequence of any length, {format_bytes(seats * nbytes)} for all"
    )


def _about(explanation: Explanation, whose: str) -> str:
    who = f"{_sequences(explanation.seats)} of {explanation.context} tokens"
    cached = f", with {_kept(explanation)} for {who}" if _caches(explanation) else ""
    about = f"Needs on {explanation.target}{cached}. {TOTAL}"
    about += f" {RESIDENT}" if _has_experts(explanation) else ""
    if explanation.memory_bytes is None:
        return about
    return f"{about} {format_bytes(explanation.memory_bytes)} are {whose}."


def _row(way: Way, explanation: Explanation) -> tuple[str, ...]:
    cells = [f"{way.name}{' (default)' if way.default else ''}", format_bytes(way.weight_bytes)]
    cells += (
        [format_bytes(way.weight_bytes - way.expert_bytes)] if _has_experts(explanation) else []
    )
    for cache in way.caches:
        cells += [format_bytes(cache.total_bytes)]
        cells += _fits(way, cache, explanation.memory_bytes)
    return tuple(cells)


def _fits(way: Way, cache: CacheNeed, memory: int | None) -> list[str]:
    """Tells whether all fits, or all but experts, which are then read from the disk again."""
    if memory is None:
        return []
    without_experts = cache.total_bytes - way.expert_bytes
    helps = way.expert_bytes > 0 and without_experts <= memory
    return ["yes" if cache.fits else "without experts" if helps else "no"]


def _caches(explanation: Explanation) -> bool:
    """Tells whether the model keeps anything of a sequence."""
    return any(cache.cache_bytes for way in explanation.ways for cache in way.caches)


def _kept(explanation: Explanation) -> str:
    """Names what the model keeps of a sequence."""
    caches = [cache for way in explanation.ways for cache in way.caches]
    named = {
        "a KV cache": any(cache.bytes_per_token for cache in caches),
        "records": any(cache.bytes_per_sequence for cache in caches),
    }
    return " and ".join(name for name, present in named.items() if present)


def _has_experts(explanation: Explanation) -> bool:
    """Tells whether some of the weights need memory only once a token picks them."""
    return any(way.expert_bytes for way in explanation.ways)
