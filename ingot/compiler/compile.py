"""The table of contents of the compiler: model directory in, artifact out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ingot.artifact.codec import encode_plan
from ingot.artifact.layer_graphs import FILE as LAYERS
from ingot.artifact.layer_graphs import encode_layers
from ingot.artifact.manifest import (
    GroupEntry,
    Manifest,
    ProgramEntry,
    TargetEntry,
)
from ingot.artifact.matrices import matrices_of
from ingot.artifact.plan import Plan
from ingot.artifact.programs import ENCODE, STEP
from ingot.artifact.quality import WARN_KL, Quality, VectorQuality
from ingot.artifact.reader import weights_name
from ingot.artifact.select import abi_of
from ingot.artifact.target import Target
from ingot.artifact.writer import ArtifactWriter
from ingot.compiler.beside import beside
from ingot.compiler.describe import Part, describe
from ingot.compiler.front import Front
from ingot.compiler.gates import add_golden, error_allowed, measured_quality, measured_vectors
from ingot.compiler.kept_front import front_of
from ingot.compiler.model import OpenModel, kept_integers, read_model
from ingot.compiler.options import Check, Clock, CompileOptions, Progress, Report, silent
from ingot.compiler.preflight import check_disk, check_tools, prepare
from ingot.compiler.quality_gate import better_way
from ingot.compiler.quality_texts import Conversation
from ingot.compiler.quantization.kept import stored_already
from ingot.compiler.quantization.quantize import quantize_weights
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.compiler.tokenizer import write_tokenizer
from ingot.compiler.torch_threads import torch_threads
from ingot.compiler.verify import PlanChecker
from ingot.models.file_names import TOKENIZER
from ingot.models.model_dir import ModelDir
from ingot.targets.compilers import Builder, raise_failed
from ingot.targets.shared_weights import share_weights, with_all_weights
from ingot.targets.target import kind_of, level_of, requires


def compile_model(
    model_dir: ModelDir,
    out: Path,
    options: CompileOptions | None = None,
    *,
    progress: Progress = silent,
    check: Check = lambda folder: None,
    conversation: Conversation | None = None,
    replace: bool = True,
) -> Report:
    """Compiles a model directory into an artifact at `out`.

    `out` appears complete or not at all. An artifact that is there already is replaced in one step,
    or refused without `replace`. `check` is the code gate, and without `conversation` there is no
    quality gate. Raises IngotError, whose type names the fault; see `ingot.errors`.
    """
    clock = Clock(progress)
    waiting = partial(progress, "wait", f"another process writes {out}", None)
    model = read_model(model_dir, options or CompileOptions(), clock)
    with model.checkpoint:
        check_tools(model.resolved.targets)
        # The compiler writes into the writer's folder, so it has to end first.
        with ArtifactWriter(out, replace=replace, on_wait=waiting) as writer, Builder() as compiler:
            prepare(model.resolved.targets, compiler)
            front = front_of(model, clock)
            check_disk(front.plan, model.resolved.targets, writer.directory)
            parts, quality = write_parts(writer, model, front, compiler, clock, conversation)
            with clock.stage("write", str(out)):
                allowed = error_allowed(writer, front)
                manifest = writer.seal(describe(model, front, parts, allowed, quality))
            with clock.stage("check", "golden prompts on this host"):
                golden_error = check(writer.directory)
            writer.publish()
    return report_of(out, manifest, model, front, clock, golden_error)


def report_of(
    out: Path,
    manifest: Manifest,
    model: OpenModel,
    front: Front,
    clock: Clock,
    golden_error: float | None,
) -> Report:
    """Report of a compile that has ended."""
    sizes = {name: file.size for name, file in manifest.files.items()}
    weight_bytes = sum(size for name, size in sizes.items() if name.startswith("weights/"))
    quality = manifest.numerics.quality
    costs_much = quality is not None and quality.kl > WARN_KL
    return Report(
        artifact=out,
        manifest=manifest,
        seconds=clock.seconds,
        stage_seconds=clock.stage_seconds,
        dtype_reason=model.resolved.dtype_reason,
        bytes_total=sum(sizes.values()),
        weight_bytes=weight_bytes,
        golden_error=golden_error,
        matrices=matrices_of(front.plan),
        choice=front.choice,
        kept=stored_already(model.checkpoint.quantized, front.storage),
        better=better_way(model, weight_bytes) if costs_much else None,
        ignored=model.ignored,
    )


def write_parts(
    writer: ArtifactWriter,
    model: OpenModel,
    front: Front,
    compiler: Builder,
    clock: Clock,
    conversation: Conversation | None = None,
) -> tuple[list[Part], Quality | VectorQuality | None]:
    """Writes all files but the manifest. Returns what the manifest says of them.

    The C++ compiler and the float32 reference work while weights are packed. Without `conversation`
    no quality is measured.
    """
    names = ", ".join(target.name for target in model.resolved.targets)
    with clock.stage("generate", names):
        parts = [add_sources(writer, model, front, t) for t in model.resolved.targets]
    builds = [
        compiler.submit(add_kernels, writer, part.target, program)
        for part in parts
        for program in part.entry.programs.values()
    ]
    writer.write(LAYERS, encode_layers(front.main.layers))
    write_tokenizer(model.tokenizer_files, writer.directory / "tokenizer")
    with QuantizedWeights(model.checkpoint.read, writer.directory) as weights:
        if front.storage:
            quantize(model, front, weights, clock)
        raise_failed(builds)
        with beside(partial(add_golden, writer, model, front, parts, weights)) as golden:
            pack(writer, model, parts, weights, clock)
            raise_failed(builds)
            with clock.stage_over("golden", "float32 reference", sizes_of(model)) as began:
                golden.wait(began)
        quality: Quality | VectorQuality | None = None
        is_asked = conversation and model.options.quality and TOKENIZER in model.tokenizer_files
        if is_asked and model.resolved.encodes:
            quality = measured_vectors(model, front, parts, weights, clock)
        elif conversation and is_asked:
            spoken = conversation(writer.directory / "tokenizer")
            quality = measured_quality(model, front, parts, weights, spoken, clock)
        model.checkpoint.forget()
    with clock.stage("build", names):
        raise_failed(builds, wait=True)
    return parts, quality


def quantize(model: OpenModel, front: Front, weights: QuantizedWeights, clock: Clock) -> None:
    """Rounds the matrices that are to be integers."""
    sizes = sizes_of(model)
    chosen = {name: sizes.get(name, 0) for name in front.storage}
    with weights.telling(clock.stage_over("quantize", front.quantization, chosen)):
        quantize_weights(
            front.reference,
            weights,
            front.storage,
            model.calibration,
            kept_integers(model),
            model.sample,
        )


def pack(
    writer: ArtifactWriter,
    model: OpenModel,
    parts: Sequence[Part],
    weights: QuantizedWeights,
    clock: Clock,
) -> None:
    """Writes a weights file for each layout."""
    stage = clock.stage_over("pack", ", ".join(layouts(parts)), sizes_of(model))
    with weights.telling(stage), torch_threads(1):  # pieces are packed side by side
        add_weights(writer, parts, weights)


def sizes_of(model: OpenModel) -> dict[str, int]:
    """The numbers in each parameter of a model."""
    return {name: parameter.numel() for name, parameter in model.module.named_parameters()}


def add_sources(writer: ArtifactWriter, model: OpenModel, front: Front, target: Target) -> Part:
    """Lets a target rewrite and group the plan for itself. Writes its plan and its sources."""
    kind, level = kind_of(target), level_of(target)
    plans = target_plans(target, front, model.options)
    entries = {}
    for program, (plan, groups) in plans.items():
        folder = program_folder(target, program)
        writer.write(f"{folder}/plan.json", encode_plan(plan))
        for name, text in kind.sources(plan, target).items():
            writer.write(f"{folder}/source/{name}", text.encode())
        entries[program] = ProgramEntry(
            plan=f"{folder}/plan.json", kernels=f"{folder}/{kind.kernels}", groups=groups
        )
    entry = TargetEntry(
        name=target.name,
        requires=tuple(sorted(requires(target))),
        layout=f"{level.layout}-{model.resolved.stored_as}",
        abi=abi_of(target.name),
        core_cache_bytes=level.core_cache(target.features),
        programs=entries,
    )
    return Part(target, {program: plan for program, (plan, _) in plans.items()}, entry)


def program_folder(target: Target, program: str) -> str:
    """Folder of a target's program in an artifact."""
    folder = f"targets/{target.name.replace(':', '-')}"
    return folder if program in (STEP.name, ENCODE.name) else f"{folder}/{program}"


def target_plans(
    target: Target, front: Front, options: CompileOptions
) -> dict[str, tuple[Plan, tuple[GroupEntry, ...]]]:
    """The plan of every program as a target runs it, and the ledger of its groups."""
    kind = kind_of(target)
    rewritten = {each.program.name: kind.rewrite(each.plan, front.fine) for each in front.programs}
    grouped = {
        name: kind.group(plan, options.disable_passes)
        for name, plan in share_weights(rewritten).items()
    }
    placed = {name: (kind.place(plan), groups) for name, (plan, groups) in grouped.items()}
    for each in front.programs if options.verify_passes else ():
        name, checker = each.program.name, PlanChecker(front.graph(each))
        checker.check_target(kind, each.plan, rewritten[name], placed[name][0])
    return placed


def add_kernels(writer: ArtifactWriter, target: Target, program: ProgramEntry) -> None:
    """Compiles the sources of a target's program."""
    kernels = writer.file(program.kernels)
    kind_of(target).build(kernels.parent / "source", kernels, target)


def layouts(parts: Sequence[Part]) -> dict[str, Part]:
    """The layouts of weights that targets need, and one target of each."""
    return {part.entry.layout: part for part in reversed(parts)}


def add_weights(writer: ArtifactWriter, parts: Sequence[Part], weights: QuantizedWeights) -> None:
    """Packs the weights, once for all targets that share a layout."""
    for layout, part in layouts(parts).items():
        name = weights_name(layout)
        with writer.growing(name) as path:
            plan = with_all_weights([*part.plans.values()])
            kind_of(part.target).pack(path, plan, weights.read, weights)
