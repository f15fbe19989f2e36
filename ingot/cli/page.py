"""The page of `ingot inspect --html`: the values that the template page.html shows."""

from __future__ import annotations

from importlib.resources import files

import jinja2

from ingot.artifact.cost import StepShape
from ingot.artifact.plan import Plan
from ingot.artifact.step_cost import kernel_costs
from ingot.cli.artifact_view import (
    ArtifactView,
    kernel_counts,
    kernel_views,
    live_bytes,
    shape_text,
)
from ingot.cli.gpu_kernels import KERNEL_HEADER, notes
from ingot.cli.gpu_reads import READ_HEADER
from ingot.cli.numbers import format_bytes, format_count

COLORS = 10  # the template's style defines --c0 to --c9


def artifact_page(view: ArtifactView, target: str) -> str:
    """The page of an artifact, with the plan of one of its targets."""
    plan = view.plans[target]
    kernels = kernel_views(plan)
    makers = {name: kernel.name for kernel in kernels for name in kernel.outputs}
    context = min(512, plan.limits.max_model_len)
    costs = kernel_costs(plan, StepShape(context=context))
    return _template().render(
        target=target,
        manifest=view.manifest,
        plan=plan,
        cards=_cards(view, plan),
        code={entry.name: view.code_bytes(entry) for entry in view.manifest.targets},
        folders=sorted(view.folder_bytes().items(), key=lambda item: -item[1]),
        counts=list(kernel_counts(plan).items()),
        makers=makers,
        colors=COLORS,
        legend={name: i % COLORS for i, name in enumerate(dict.fromkeys(makers.values()))},
        live=live_bytes(plan),
        context=context,
        kernels=list(zip(kernels, costs, strict=True)),
        gpu=view.gpu_kernels(target),
        gpu_headers=(KERNEL_HEADER, READ_HEADER),
        notes=notes,
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    environment.filters.update(bytes=format_bytes, count=format_count, shape=shape_text)
    return environment.from_string((files("ingot.cli") / "page.html").read_text("utf-8"))


def _cards(view: ArtifactView, plan: Plan) -> tuple[tuple[str, str], ...]:
    """The artifact's figures: a number and what it counts."""
    manifest, model = view.manifest, view.manifest.model
    numerics, limits = manifest.numerics, manifest.limits
    longest = format_bytes(model.kv_bytes_per_token * limits.max_model_len)
    return (
        (format_count(model.num_parameters), f"parameters, {model.num_layers} layers"),
        (format_bytes(view.folder_bytes().get("weights", 0)), f"weights in {numerics.dtype}"),
        (format_bytes(plan.memory.arena_bytes), "arena of a step"),
        (
            format_bytes(model.kv_bytes_per_token),
            f"KV cache a token in {plan.kv_dtype}; {longest} a full sequence",
        ),
        (f"{limits.max_model_len}", "tokens in a sequence at most"),
        (f"{numerics.tolerance:g}", "mean error allowed to golden log-probabilities"),
    )
