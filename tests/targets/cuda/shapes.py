"""Models of real shapes as plans and launches, without their weights."""

from __future__ import annotations

from pathlib import Path

from bench.make_model import write_config
from ingot.artifact.codec import decode_built
from ingot.artifact.launches import BuiltLaunches
from ingot.artifact.plan import Plan
from ingot.artifact.target import Target
from ingot.compiler.compile import target_plan
from ingot.compiler.lower_model import lower_model
from ingot.compiler.model import Model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.compiler.resolve import resolve
from ingot.models import registry
from ingot.targets.cuda import toolchain
from ingot.targets.cuda.kind import KIND


def plan_of(folder: Path, shape: str, stored: str, target: Target, dtype: str = "auto") -> Plan:
    """The placed plan of a shape of `bench/make_model.py`, its weights `stored` as --quantize
    says, and computed in `dtype`. Its configuration is written to the folder."""
    write_config(folder, shape)
    options = CompileOptions(targets=(target.name,), quantize=stored, dtype=dtype)
    config = registry.load_config(folder)
    resolved = resolve(options, config)
    module = registry.build(config, max_model_len=resolved.limits.max_model_len)
    # Nothing before packing looks at the tokenizer or the weights.
    model = Model(folder, options, config, resolved, None, module, None, [])  # type: ignore[arg-type]
    plan, _ = target_plan(KIND, lower_model(model, Clock(silent)), options)
    return plan


def built_of(folder: Path, plan: Plan, target: Target) -> BuiltLaunches:
    """The launches of a plan, built in a folder."""
    (folder / toolchain.LAUNCHES).write_text(KIND.sources(plan, target)[toolchain.LAUNCHES])
    toolchain.build(folder, folder / KIND.kernels, target)
    return decode_built((folder / KIND.kernels).read_bytes())
