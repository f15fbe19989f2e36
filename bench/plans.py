"""Plans of models of exact shapes, without their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.make_model import write_config
from ingot.artifact.plan import Plan
from ingot.artifact.programs import STEP
from ingot.artifact.target import Target
from ingot.compiler.compile import target_plans
from ingot.compiler.lower_model import lower_model
from ingot.compiler.model import OpenModel
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.compiler.resolve import resolve
from ingot.models import registry
from ingot.models.model_dir import ModelDir


def plan_of(
    folder: Path, shape: str, stored: str, target: Target, dtype: str = "auto", **options: Any
) -> Plan:
    """The placed plan of a shape of `bench/make_model.py`, its weights `stored` as --quantize
    says, computed in `dtype`, with further options of a compile. Its configuration is written to
    the folder."""
    write_config(folder, shape)
    return plan_in(folder, target, quantize=stored, dtype=dtype, **options)


def plan_in(folder: Path, target: Target, **options: Any) -> Plan:
    """The placed plan of the model whose configuration lies in a folder, with options of a
    compile."""
    chosen = CompileOptions(targets=(target.name,), **options)
    model_dir = ModelDir.open(folder)
    config = registry.load_config(model_dir)
    resolved = resolve(chosen, config)
    module = registry.build(config, max_model_len=resolved.limits.max_model_len)
    # Nothing before packing looks at the tokenizer or the weights.
    model = OpenModel(model_dir, chosen, config, resolved, None, module, None, [])  # type: ignore[arg-type]
    plan, _ = target_plans(target, lower_model(model, Clock(silent)), chosen)[STEP.name]
    return plan
