"""The front end: exports a model, applies the passes, and lowers the graph to the plan."""

from __future__ import annotations

from collections.abc import Mapping, Set
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.artifact.manifest import LedgerEntry
from ingot.artifact.programs import STEP, Program
from ingot.compiler.choose_formats import choose_formats
from ingot.compiler.export import export
from ingot.compiler.foreign import refusal, settle
from ingot.compiler.front import Front, LoweredProgram
from ingot.compiler.layers import first_of_each_kind
from ingot.compiler.lower import lower
from ingot.compiler.model import OpenModel, keeps
from ingot.compiler.options import Clock
from ingot.compiler.orders import with_orders
from ingot.compiler.program_graphs import blocks_of, graph_of, result_of
from ingot.compiler.quantization.choose import label
from ingot.compiler.verify import PlanChecker
from ingot.errors import PassError
from ingot.models.counts import module_counts
from ingot.models.foreign.config import ForeignConfig
from ingot.passes import runner
from ingot.passes.layer_log import LayerLog
from ingot.passes.pipeline import pipeline


def lower_model(model: OpenModel, clock: Clock, exported: GraphModule | None = None) -> Front:
    """Exports the module, unless it was exported already, and lowers its graph to the plan."""
    config = model.config
    if exported is None:
        with clock.stage("export", f"{config.architecture}, {config.num_layers} layers"):
            exported = export(model.module, config)
            if isinstance(config, ForeignConfig):
                exported = settle(exported, model.module)
    reference = with_orders(GraphModule(exported, deepcopy(exported.graph)), model.orders)
    chosen = choose_formats(model, reference, clock)
    storage = chosen.storage
    lowered = [
        lower_program(each, reference, model, storage, clock) for each in model.resolved.programs
    ]
    quantization = label(storage, calibrated=bool(model.calibration), kept=keeps(model, storage))
    return Front(reference, storage, quantization, tuple(lowered), chosen.fine, chosen.in_words)


def lower_program(
    program: Program,
    reference: GraphModule,
    model: OpenModel,
    storage: Mapping[str, Storage],
    clock: Clock,
) -> LoweredProgram:
    """Applies a program's passes to its part of the graph, and makes its plan."""
    resolved, result = model.resolved, result_of(reference, program)
    graph = graph_of(reference, program, result)
    used = {str(node.target) for node in graph.graph.find_nodes(op="get_attr")}
    stored = {name: each for name, each in storage.items() if name in used}
    log = LayerLog(first_of_each_kind(model.module))
    of_program = "" if program is STEP else f"{program.name}, "
    with clock.stage("passes", f"{of_program}{resolved.dtype_reason}"):
        ledger = run_passes(graph, program, model, stored.keys(), log)
    tokens = resolved.limits.max_num_batched_tokens
    with clock.stage("plan", f"{of_program}{tokens} tokens a step"):
        plan = lower(graph, resolved.limits, stored, int8_states=resolved.kv_dtype == "int8")
        if model.options.verify_passes:
            PlanChecker(graph_of(reference, program, result)).check_lowered(graph, plan)
    return LoweredProgram(program, result, plan, ledger, log.graphs)


def run_passes(
    graph: GraphModule, program: Program, model: OpenModel, integers: Set[str], log: LayerLog
) -> tuple[LedgerEntry, ...]:
    """Applies the passes. Raises UnsupportedModelError for another library's module that computes
    what no op stands for."""
    options, is_ours = model.options, not isinstance(model.config, ForeignConfig)
    passes = pipeline(
        program,
        dtype=model.resolved.dtype,
        disable=options.disable_passes,
        integers=integers,
        kept=model.resolved.kept,
    )
    try:
        ledger = runner.run(
            graph,
            passes,
            module_counts(model.module, blocks_of(graph, program)) if is_ours else None,
            dump_dir=dump_folder(options.dump_dir, program),
            log=log,
            verify=options.verify_passes,
        )
        return tuple(replace(entry, program=program.name) for entry in ledger)
    except PassError as error:
        if is_ours:
            raise
        raise refusal(graph, model.config.architecture, error) from error


def dump_folder(folder: Path | None, program: Program) -> Path | None:
    """Folder for the graphs of a program: those of the step lie at the top."""
    return folder / program.name if folder and program is not STEP else folder
