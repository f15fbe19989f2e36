"""The front end: exports a model, applies the passes, and lowers the graph to the plan."""

from __future__ import annotations

from collections.abc import Set
from copy import deepcopy
from functools import partial

from torch.fx import GraphModule

from ingot.artifact.manifest import LedgerEntry
from ingot.compiler.export import export
from ingot.compiler.foreign import refusal, settle
from ingot.compiler.front import Front
from ingot.compiler.layers import first_of_each_kind
from ingot.compiler.lower import lower
from ingot.compiler.model import Model, keeps
from ingot.compiler.options import Clock
from ingot.compiler.quantization.choose import check_calibration, choose_storage, label
from ingot.compiler.verify import PlanChecker
from ingot.errors import PassError
from ingot.models.counts import module_counts
from ingot.models.foreign.config import ForeignConfig
from ingot.passes import runner
from ingot.passes.layer_log import LayerLog
from ingot.passes.pipeline import pipeline
from ingot.targets.target import all_fit


def lower_model(model: Model, clock: Clock, exported: GraphModule | None = None) -> Front:
    """Exports the module, unless it was exported already, and lowers its graph to the plan."""
    config, resolved, options = model.config, model.resolved, model.options
    if exported is None:
        with clock.stage("export", f"{config.architecture}, {config.num_layers} layers"):
            exported = export(model.module, config)
            if isinstance(config, ForeignConfig):
                exported = settle(exported, model.module)
    graph = GraphModule(exported, deepcopy(exported.graph))
    reference = GraphModule(exported, deepcopy(exported.graph))
    fits = partial(all_fit, resolved.targets)
    storage = choose_storage(
        reference,
        resolved.storage,
        options.keep,
        resolved.dtype,
        resolved.int8,
        fits,
        resolved.kept,
    )
    if model.calibration:
        check_calibration(reference, storage)
    log = LayerLog(first_of_each_kind(model.module))
    with clock.stage("passes", resolved.dtype_reason):
        ledger = run_passes(graph, model, storage.keys(), log)
    with clock.stage("plan", f"{resolved.limits.max_num_batched_tokens} tokens a step"):
        plan = lower(graph, resolved.limits, storage, int8_states=resolved.kv_dtype == "int8")
        if options.verify_passes:
            PlanChecker(reference).check_lowered(graph, plan)
    quantization = label(storage, calibrated=bool(model.calibration), kept=keeps(model, storage))
    return Front(reference, storage, quantization, plan, ledger, log.graphs)


def run_passes(
    graph: GraphModule, model: Model, integers: Set[str], log: LayerLog
) -> tuple[LedgerEntry, ...]:
    """Applies the passes. Raises UnsupportedModelError for another library's module that computes
    what no op stands for."""
    options, is_ours = model.options, not isinstance(model.config, ForeignConfig)
    passes = pipeline(dtype=model.resolved.dtype, disable=options.disable_passes, integers=integers)
    try:
        return runner.run(
            graph,
            passes,
            module_counts(model.module) if is_ours else None,
            dump_dir=options.dump_dir,
            log=log,
            verify=options.verify_passes,
        )
    except PassError as error:
        if is_ours:
            raise
        raise refusal(graph, model.config.architecture, error) from error
