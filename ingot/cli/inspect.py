"""`ingot inspect`: what an artifact holds and what it will need."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.cli.arguments import MODEL, REVISION, Argument, Arguments
from ingot.cli.compile import groups_text, ledger_table
from ingot.cli.numbers import format_bytes, format_count
from ingot.cli.output import facts, print_json, show, table
from ingot.errors import UsageError

if TYPE_CHECKING:
    from ingot.artifact.plan import Plan
    from ingot.cli.artifact_view import ArtifactView

NAME = "inspect"
SUMMARY = "show targets, sizes, ledger, plan and memory of an artifact"
ARGUMENTS: Arguments = (
    MODEL,
    REVISION,
    Argument("--target NAME", "whose plan and kernels to show (default: the first)"),
    Argument("--plan", "print the kernels of the plan"),
    Argument(
        "--kernels",
        "print the binaries of a GPU's kernels: registers, shared memory, launches, and the "
        "bandwidth that products can have",
    ),
    Argument(
        "--html FILE",
        "write a page with the ledger, the arena drawn over time, and the kernels",
        Path,
    ),
)


def main(args: argparse.Namespace) -> int:
    """Shows what an artifact holds and what it will need. Works on any host, even on one that
    cannot run the artifact."""
    from ingot.cache import resolve
    from ingot.cli.artifact_view import read_artifact
    from ingot.hub import model_path

    view = read_artifact(resolve(model_path(args.model, args.revision)))
    target = _target(view, args.target, gpu=args.kernels)
    if args.html:
        from ingot.cli.page import artifact_page

        args.html.write_text(artifact_page(view, target), encoding="utf-8")
        print(f"wrote {args.html}", file=sys.stderr)
    if args.json:
        print_json(_as_object(view, target))
    elif args.kernels:
        show(kernels(view, target))
    elif args.plan:
        show(plan_table(view.plans[target]))
    elif not args.html:
        show(summary(view, target))
    return 0


def summary(view: ArtifactView, target: str) -> str:
    """The artifact on one screen."""
    from ingot.cli.artifact_view import kernel_counts

    plan = view.plans[target]
    counts = [(count, kernel) for kernel, count in kernel_counts(plan).items()]
    version = ".".join(str(part) for part in view.manifest.format)
    binaries = " --kernels the binaries of those of a GPU," if view.built else ""
    sections = [
        f"{view.path}   format {version}, written by ingot {view.manifest.ingot_version}",
        facts(_model_facts(view)),
        "Files\n" + facts((k, format_bytes(v)) for k, v in view.folder_bytes().items()),
        "Memory\n" + facts(memory_facts(view, plan)),
        "Cost\n" + facts(cost_facts(plan)),
        "Targets\n" + _target_table(view),
        "Ledger\n" + ledger_table(view.manifest.ledger),
        "Groups\n" + groups_text(view.manifest),
        f"Plan of {target}\n" + table(counts, ("count", "kernel")),
        f"More: --plan prints the kernels,{binaries} --html FILE writes a page with pictures.",
    ]
    return "\n\n".join(sections)


def memory_facts(view: ArtifactView, plan: Plan) -> list[tuple[str, str]]:
    """What a running engine keeps in memory, part by part."""
    per_token, longest = view.manifest.model.kv_bytes_per_token, plan.limits.max_model_len
    weights = view.folder_bytes().get("weights", 0)
    token, sequence = format_bytes(per_token), format_bytes(per_token * longest)
    return [
        ("weights", f"{format_bytes(weights)}, mapped from the file and shared by processes"),
        ("arena", f"{format_bytes(plan.memory.arena_bytes)} for the temporaries of a step"),
        ("KV cache", f"{plan.kv_dtype}, {token} a token; {sequence} for {longest} tokens"),
    ]


def cost_facts(plan: Plan) -> list[tuple[str, str]]:
    """The least that steps must read and compute."""
    from ingot.artifact.cost import StepShape
    from ingot.artifact.step_cost import step_cost

    prompt = min(512, plan.limits.max_model_len)
    token = step_cost(plan, StepShape())
    prefill = step_cost(plan, StepShape(new_tokens=prompt, context=prompt))
    operations = f"{format_count(token.num_operations)} operations"
    return [
        ("decode", f"a token reads {format_bytes(token.weight_bytes)} of weights; {operations}"),
        ("prefill", f"{prompt} tokens take {format_count(prefill.num_operations)} operations"),
    ]


def plan_table(plan: Plan) -> str:
    """A line for each kernel."""
    from ingot.cli.artifact_view import kernel_views, shape_text

    rows = []
    for index, view in enumerate(kernel_views(plan)):
        outputs = " ".join(f"{n}:{shape_text(plan.buffer(n))}" for n in view.outputs)
        rows.append((index, view.name, outputs, view.origin, view.attrs, " ".join(view.inputs)))
    return table(rows, ("#", "kernel", "outputs", "from", "attributes", "inputs"))


def kernels(view: ArtifactView, target: str) -> str:
    """The binaries of a GPU's kernels. Raises UsageError for a target that is no GPU."""
    from ingot.cli.gpu_kernels import kernels_text

    found = view.gpu_kernels(target)
    if found is None:
        raise UsageError(
            f"the kernels of {target} are one library",
            hint="--kernels is for GPUs; --plan prints the kernels of a plan.",
        )
    return kernels_text(found, target, view.manifest.model.num_layers)


def _model_facts(view: ArtifactView) -> list[tuple[str, str]]:
    model, limits = view.manifest.model, view.manifest.limits
    numerics = view.manifest.numerics
    quantized = "" if numerics.quantization == "none" else f", {numerics.quantization}"
    return [
        ("model", f"{model.name} ({model.architecture})"),
        ("parameters", f"{format_count(model.num_parameters)} in {model.num_layers} layers"),
        ("vocabulary", f"{model.vocab_size} tokens"),
        ("sequence", f"at most {limits.max_model_len} tokens"),
        (
            "step",
            f"at most {limits.max_num_batched_tokens} tokens of {limits.max_num_seqs} sequences",
        ),
        ("numerics", f"{numerics.dtype}{quantized}; goldens within {numerics.tolerance:g}"),
    ]


def _target_table(view: ArtifactView) -> str:
    rows = [
        (
            target.name,
            target.layout,
            format_bytes(view.code_bytes(target)),
            len(view.plans[target.name].kernels),
            format_bytes(view.plans[target.name].memory.arena_bytes),
            view.driver(target.name),
        )
        for target in view.manifest.targets
    ]
    columns = ("target", "weights", "code", "kernels", "arena", "needs")
    width = len(columns) if view.built else len(columns) - 1
    return table([row[:width] for row in rows], columns[:width])


def _target(view: ArtifactView, name: str | None, *, gpu: bool = False) -> str:
    names = [target.name for target in view.manifest.targets]
    if name is None:
        return next(iter(view.built), names[0]) if gpu else names[0]
    if name not in names:
        raise UsageError(f"no target {name!r} in {view.path}", hint=f"It has: {', '.join(names)}.")
    return name


def _as_object(view: ArtifactView, target: str) -> dict[str, Any]:
    from ingot.cli.artifact_view import kernel_counts, live_bytes

    return {
        "artifact": view.path,
        "manifest": view.manifest,
        "folder_bytes": view.folder_bytes(),
        "plans": {
            name: {
                "kernels": len(plan.kernels),
                "kernel_counts": kernel_counts(plan),
                "arena_bytes": plan.memory.arena_bytes,
                "peak_live_bytes": max(live_bytes(plan), default=0),
                "gpu_kernels": view.gpu_kernels(name),
            }
            for name, plan in view.plans.items()
        },
        "plan": view.plans[target],
    }
