"""The table of contents of an export: model directory in, a folder of ONNX out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch.fx import GraphModule

from ingot.artifact.folder import FolderWriter
from ingot.artifact.host import available_memory
from ingot.artifact.pooler import Pooler
from ingot.compiler.model import OpenModel, family_config, keeps, kept_integers, read_model
from ingot.compiler.options import Clock, Progress
from ingot.compiler.preflight import check_room
from ingot.compiler.quantization.choose import label
from ingot.compiler.quantization.quantize import quantize_weights
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.compiler.reference import ReadParameter, reference_logits
from ingot.models.model_dir import ModelDir
from ingot.onnx.batched import Batched
from ingot.onnx.check import ALLOWED, Numbers, check_file, random_prompts, reference_rows
from ingot.onnx.encoder import Encoder
from ingot.onnx.genai import write_genai_config, write_surroundings
from ingot.onnx.generator import Generator
from ingot.onnx.integers import fits
from ingot.onnx.lowered import Lowered, as_stored, lower, make_weights
from ingot.onnx.operators import operators
from ingot.onnx.options import OnnxOptions, OnnxReport
from ingot.onnx.output import DATA, MODEL, PLAIN, refuse_foreign
from ingot.onnx.program import count_operators, make_program, save, save_beside, weight_bytes
from ingot.onnx.sums import wide_products
from ingot.ops.dtypes import TORCH_DTYPES

MEMORY_PER_WEIGHT = 3  # onnxruntime holds weights as they are, turned, and in its own layout


def export_model(
    model_dir: ModelDir,
    out: Path,
    options: OnnxOptions,
    progress: Progress,
    *,
    replace: bool = False,
) -> OnnxReport:
    """Writes a model directory as ONNX into the folder `out`, and checks it.

    `out` appears complete or not at all. Raises IngotError, whose type names the fault.
    """
    clock = Clock(progress)
    model = read_model(model_dir, options.compile, clock, fits)
    with (
        model.checkpoint,
        FolderWriter(out, refuse_foreign, replace=replace) as writer,
        QuantizedWeights(model.checkpoint.read, writer.directory) as weights,
    ):
        lowered = lower(model, clock)
        quantize(model, lowered, weights, clock)
        wide, folder = find_wide(model, lowered, weights, options, clock), writer.directory
        counts = write_files(model, lowered, weights, options, wide, folder, clock)
        surround(model, folder)
        errors = check(model, lowered, weights, options, folder, clock)
        with clock.stage("write", str(out)):
            writer.publish()
    return OnnxReport(
        folder=out,
        opset=options.opset,
        dtype=options.stored,
        quantization=stored_as(model, lowered),
        files={file.name: file.stat().st_size for file in sorted(out.iterdir())},
        operators=counts,
        wide=wide,
        errors=errors,
        allowed=ALLOWED[options.narrow],
        seconds=clock.seconds,
        stage_seconds=clock.stage_seconds,
    )


def surround(model: OpenModel, folder: Path) -> None:
    """Writes what other programs look for beside the models."""
    longest, config = model.resolved.limits.max_model_len, family_config(model)
    write_surroundings(model.model_dir, folder, config)
    if model.pooler is None and not config.record_bytes:  # onnxruntime-genai passes no records on
        write_genai_config(model.model_dir, folder, config, longest=longest, file=MODEL)


def stored_as(model: OpenModel, lowered: Lowered) -> str:
    """Storage of matrices, in the words of a compile."""
    kept = keeps(model, lowered.storage)
    return label(lowered.storage, calibrated=bool(model.calibration), kept=kept)


def quantize(model: OpenModel, lowered: Lowered, weights: QuantizedWeights, clock: Clock) -> None:
    """Fills `weights` with the matrices that are stored in integers."""
    if lowered.storage:
        sizes = {name: p.numel() for name, p in model.module.named_parameters()}
        chosen = {name: sizes.get(name, 0) for name in lowered.storage}
        with weights.telling(clock.stage_over("quantize", "", chosen)):
            quantize_weights(
                lowered.reference,
                weights,
                lowered.storage,
                model.calibration,
                kept_integers(model),
                model.sample,
            )


def find_wide(
    model: OpenModel,
    lowered: Lowered,
    weights: QuantizedWeights,
    options: OnnxOptions,
    clock: Clock,
) -> tuple[str, ...]:
    """The matrices whose products stay in float32, by what the reference says of the prompts of
    the check; none unless products are in float16."""
    if options.narrow != "float16":
        return ()
    with clock.stage("ranges", "sums that float16 does not hold"):
        prompts = random_prompts(family_config(model), model.resolved.limits.max_model_len)
        return wide_products(lowered.reference, as_stored(weights, options.stored), prompts)


def write_files(
    model: OpenModel,
    lowered: Lowered,
    weights: QuantizedWeights,
    options: OnnxOptions,
    wide: tuple[str, ...],
    folder: Path,
    clock: Clock,
) -> dict[str, dict[str, int]]:
    """Writes the models and the weights that they share; returns how often each operator occurs,
    by file."""
    programs = {}
    with clock.stage("onnx", f"opset {options.opset}"):
        for name, build in builders(model, lowered, weights, options, wide).items():
            programs[name] = make_program(build, family_config(model), options.opset)
    check_room(weight_bytes(programs[MODEL]), folder)
    sizes = {name: p.numel() for name, p in model.module.named_parameters()}
    with clock.stage_over("pack", DATA, sizes) as began:
        save(programs[MODEL], folder / MODEL, began)
    for name in programs.keys() - {MODEL}:
        save_beside(programs[name], folder / name, folder / MODEL)
    model.checkpoint.forget()
    return {name: count_operators(program) for name, program in programs.items()}


def builders(
    model: OpenModel,
    lowered: Lowered,
    weights: QuantizedWeights,
    options: OnnxOptions,
    wide: tuple[str, ...],
) -> dict[str, Callable[[], Batched]]:
    """What builds the module of each file."""
    checkpoint, config = model.checkpoint, family_config(model)
    shapes = {name: tuple(checkpoint.shape(name)) for name in checkpoint.names}
    graph = lowered.primitives
    make = partial(make_weights, lowered, shapes, options.stored, weights, wide)
    how: dict[str, Any] = {
        "operators": operators(options.opset),
        "narrow": TORCH_DTYPES[options.narrow],
    }
    if model.pooler is not None:
        return {MODEL: partial(Encoder, model.pooler, graph, make, **how)}
    return {
        name: partial(Generator, config, graph, make, cached=name == MODEL, **how)
        for name in (MODEL, PLAIN)
    }


def check(
    model: OpenModel,
    lowered: Lowered,
    weights: QuantizedWeights,
    options: OnnxOptions,
    folder: Path,
    clock: Clock,
) -> dict[str, float]:
    """The error of each file against the float32 reference; none where memory is too little."""
    free = available_memory()
    if free is not None and free < MEMORY_PER_WEIGHT * (folder / DATA).stat().st_size:
        return {}
    with clock.stage("check", "onnxruntime against the float32 reference"):
        prompts = random_prompts(family_config(model), model.resolved.limits.max_model_len)
        read = as_stored(weights, options.stored)
        expected = expected_of(lowered.reference, read, prompts, model.pooler)
        allowed = ALLOWED[options.narrow]
        files = [file for file in (folder / MODEL, folder / PLAIN) if file.exists()]
        return {file.name: check_file(file, prompts, expected, allowed) for file in files}


def expected_of(
    graph: GraphModule,
    read: ReadParameter,
    prompts: Sequence[Sequence[int]],
    pooler: Pooler | None,
) -> list[Numbers]:
    """What the float32 reference gives for each prompt."""
    if pooler is not None:
        return reference_rows(graph, read, prompts, pooler)
    return [each.numpy() for each in reference_logits(graph, read, prompts)]
