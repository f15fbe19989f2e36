"""`ingot inspect`: what an artifact holds and what it will need."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.artifact.programs import main_of, meaning_of
from ingot.artifact.quality import quality_line
from ingot.cli.arguments import MODEL, REVISION, Argument, Arguments
from ingot.cli.built import groups_text, ledger_table
from ingot.cli.numbers import format_bytes, format_count
from ingot.cli.output import facts, print_json, show, table
from ingot.errors import UsageError, VerificationError
from ingot.files import write_whole

if TYPE_CHECKING:
    from ingot.artifact.plan import Plan
    from ingot.cli.inspect.inspected import Inspected
    from ingot.cli.inspect.measured import Measured
    from ingot.cli.inspect.view import ArtifactView
    from ingot.runtime.verify import Verification

ARGUMENTS: Arguments = (
    MODEL,
    REVISION,
    Argument("--target NAME", "whose plan and kernels to show (default: the first)"),
    Argument("--program NAME", "whose plan to show (default: step)"),
    Argument("--plan", "print the kernels of the plan"),
    Argument("--layer N", "the layer that --plan, --dot and --onnx show (default: all)", int),
    Argument(
        "--kernels",
        "print the binaries of a GPU's kernels: registers, shared memory, launches, and the "
        "bandwidth that products can have",
    ),
    Argument(
        "--html FILE",
        "write a page: what it needs and where it fits, speed, numerics, one layer from the export "
        "to the kernels, the ledger, the arena drawn over time, and the plan",
        Path,
    ),
    Argument("--dot FILE", "write the plan for Graphviz, with a frame around each group", Path),
    Argument(
        "--onnx FILE",
        "draw the plan as ONNX for viewers such as Netron: a node for each kernel, no weights; "
        "`ingot export-onnx` writes a model that runs",
        Path,
    ),
    Argument(
        "--bench FILE", "what `ingot bench --json` printed of this artifact, to be shown", Path
    ),
    Argument("--verify", "replay the golden prompts on this host, and show what they gave"),
)


def main(args: argparse.Namespace) -> int:
    """Shows what an artifact holds and what it will need. Works on any host, even on one that
    cannot run the artifact. With --verify, exit code 4 if the golden outputs differ. A FILE of -
    is stdout."""
    from ingot.cli.inspect.inspected import Inspected, as_object
    from ingot.cli.inspect.view import read_artifact
    from ingot.compiled import resolve
    from ingot.hub.names import model_path

    view = read_artifact(resolve(model_path(args.model, args.revision)))
    target = _target(view, args.target, gpu=args.kernels)
    program = _program(view, target, args.program)
    _check_layer(view.programs[target][program], args.layer)
    measured = _measured(view, args.bench)
    verified = _verified(view) if args.verify else None
    found = Inspected(
        view=view, target=target, program=program, measured=measured, verified=verified
    )
    wrote = _write_files(found, args)
    if args.json:
        print_json(as_object(found))
    elif args.kernels:
        show(kernels(view, target))
    elif args.plan:
        show(plan_table(found.plan, args.layer))
    elif not wrote:
        show(summary(found))
    return _exit_code(verified)


def _write_files(found: Inspected, args: argparse.Namespace) -> bool:
    """Writes the files that were asked for, once all of them are made; whether there was one."""
    manifest, plan, layer = found.view.manifest, found.plan, args.layer
    made: list[tuple[Path, bytes]] = []
    if args.onnx:
        from ingot.cli.inspect.onnx import plan_onnx

        made.append((args.onnx, plan_onnx(manifest, plan, found.target, layer)))
    if args.dot:
        from ingot.cli.inspect.dot import plan_dot

        made.append((args.dot, plan_dot(plan, manifest.model.name, layer).encode()))
    if args.html:
        from ingot.cli.inspect.page import artifact_page

        made.append((args.html, artifact_page(found).encode()))
    for path, data in made:
        if str(path) == "-":
            sys.stdout.buffer.write(data)
            continue
        write_whole(path, data)
        print(f"wrote {path}", file=sys.stderr)
    return bool(made)


def _measured(view: ArtifactView, file: Path | None) -> Measured | None:
    from ingot.cli.inspect.measured import read_measured

    return read_measured(file, view.manifest) if file else None


def _verified(view: ArtifactView) -> Verification:
    """Replays the golden prompts. Raises what `Artifact.open` and `replay` raise."""
    from ingot.artifact.reader import Artifact
    from ingot.runtime.verify import replay

    return replay(Artifact.open(view.path, "full"))


def _exit_code(verified: Verification | None) -> int:
    if verified is None or verified.passed:
        return 0
    print("error: this host does not reproduce the golden outputs", file=sys.stderr)
    return VerificationError.exit_code


def _check_layer(plan: Plan, layer: int | None) -> None:
    """Raises UsageError for a layer that a plan does not have."""
    from ingot.cli.inspect.view import layer_of

    there = {number for i in plan.instructions if (number := layer_of(i.origin)) is not None}
    if layer is not None and layer not in there:
        has = f"It has 0 to {max(there)}." if there else "It has no layers with numbers."
        raise UsageError(f"no layer {layer} in the plan", hint=has)


def summary(found: Inspected) -> str:
    """The artifact on one screen."""
    from ingot.cli.inspect.view import kernel_counts

    view, target, plan = found.view, found.target, found.plan
    counts = [(count, kernel) for kernel, count in kernel_counts(plan).items()]
    version = ".".join(str(part) for part in view.manifest.format)
    binaries = " --kernels the binaries of those of a GPU," if view.built else ""
    sections = [
        f"{view.path}   format {version}, written by ingot {view.manifest.ingot_version}",
        facts(_model_facts(view)),
        "Files\n" + facts((k, format_bytes(v)) for k, v in view.folder_bytes().items()),
        "Memory\n" + facts(memory_facts(view, target)),
        "Cost\n" + facts(cost_facts(plan)),
        *_checked(found),
        "Targets\n" + _target_table(view),
        "Programs\n" + _program_table(found),
        "Weights\n" + _weights_table(found),
        *_bits_pictures(found),
        "Differs from the reference\n"
        + "\n".join(f"  - {each.what} [{each.tier}]" for each in found.differences),
        "Ledger\n" + ledger_table(view.manifest.ledger),
        "Groups\n" + groups_text(view.manifest),
        f"Plan of {found.program} for {target}\n" + table(counts, ("count", "kernel")),
        f"More: --plan prints the kernels,{binaries} --html FILE writes a page with pictures,\n"
        "--dot FILE and --onnx FILE the plan for Graphviz and Netron; --verify replays goldens.",
    ]
    return "\n\n".join(sections)


def memory_facts(view: ArtifactView, target: str) -> list[tuple[str, str]]:
    """Memory of a running engine, part by part."""
    from ingot.artifact.target import kind_of_name

    plan = view.plans[target]
    per_token, longest = view.manifest.model.kv_bytes_per_token, plan.limits.max_model_len
    weights, experts = view.folder_bytes().get("weights", 0), plan.stack_bytes
    token, records = format_bytes(per_token), format_bytes(plan.slot_bytes)
    kept = f"{format_bytes(per_token * longest)} for {longest} tokens"
    held, picked = "copied to the device", "copied to the device"
    if kind_of_name(target) == "cpu":
        held = "mapped from the file and shared by processes"
        picked = "mapped from the file; only those that tokens pick are read, and need memory"
    return [
        ("weights", f"{format_bytes(weights - experts)}, {held}"),
        *([("experts", f"{format_bytes(experts)} more, {picked}")] if experts else []),
        ("arena", f"{format_bytes(plan.memory.arena_bytes)} for the temporaries of a step"),
        *([("KV cache", f"{plan.kv_dtype}, {token} a token; {kept}")] if per_token else []),
        *([("records", f"{records} a sequence, however long it is")] if plan.slot_bytes else []),
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


def plan_table(plan: Plan, layer: int | None = None) -> str:
    """A line for each kernel, or each of a layer."""
    from ingot.cli.inspect.view import kernel_views, kernels_of, shape_text

    rows = []
    views = kernel_views(plan)
    for index, view in ((number, views[number]) for number, _ in kernels_of(plan, layer)):
        outputs = " ".join(f"{n}:{shape_text(plan.buffer(n))}" for n in view.outputs)
        rows.append((index, view.name, outputs, view.origin, view.attrs, " ".join(view.inputs)))
    return table(rows, ("#", "kernel", "outputs", "from", "attributes", "inputs"))


def _checked(found: Inspected) -> list[str]:
    """Sections on what was measured and verified on a host, if anything was."""
    measured, verified = found.measured, found.verified
    return [
        *([_speed_text(measured)] if measured else []),
        *([_golden_text(verified)] if verified else []),
    ]


def _speed_text(measured: Measured) -> str:
    rows = [
        (each.name, f"{each.tokens_per_second:.1f}", f"{each.share:.0%}", each.bound)
        for each in measured.phases
    ]
    title = f"Speed of {measured.target} on {measured.processor or 'an unnamed processor'}"
    return f"{title}\n{table(rows, ('phase', 'tok/s', 'of limit', 'bound by'))}"


def _golden_text(verified: Verification) -> str:
    result = "reproduced" if verified.passed else "NOT reproduced"
    rows = [
        ("result", f"{result} on this host"),
        ("prompts", f"{verified.num_prompts} prompts, {verified.num_positions} positions"),
        ("error", f"{verified.mean_error:.1e} in the mean, {verified.allowed.mean:.1e} allowed"),
        ("largest", f"{verified.max_error:.1e}, {verified.tolerance:.1e} allowed"),
    ]
    return f"Golden outputs\n{facts(rows)}"


def _weights_table(found: Inspected) -> str:
    rows = [
        (each.format, each.tensors, format_bytes(each.nbytes), each.some) for each in found.weights
    ]
    return table(rows, ("format", "tensors", "bytes", "names"))


def _bits_pictures(found: Inspected) -> list[str]:
    """The bits of matrices by layer, where layers differ."""
    if not found.bits:
        return []
    rows = [
        (name, line)
        for each in found.bits
        for name, line in zip((each.name, ""), each.lines, strict=True)
        if line
    ]
    marks = ", ^ rows of 16 bits" if any(any(each.fine) for each in found.bits) else ""
    return [f"Bits by layer (- no integers{marks})\n{facts(rows)}"]


def kernels(view: ArtifactView, target: str) -> str:
    """The binaries of a GPU's kernels. Raises UsageError for a target that is no GPU."""
    from ingot.cli.inspect.gpu import kernels_text

    found = view.gpu_kernels(target)
    if found is None:
        raise UsageError(
            f"the kernels of {target} are one library",
            hint="--kernels is for GPUs; --plan prints the kernels of a plan.",
        )
    return kernels_text(found, target, view.manifest.model.num_layers)


def _model_facts(view: ArtifactView) -> list[tuple[str, str]]:
    manifest = view.manifest
    model, limits, numerics = manifest.model, manifest.limits, manifest.numerics
    quantized = "" if numerics.quantization == "none" else f", {numerics.quantization}"
    tokens, sequences = limits.max_num_batched_tokens, limits.max_num_seqs
    return [
        ("model", f"{model.name} ({model.architecture})"),
        ("parameters", f"{format_count(model.num_parameters)} in {model.num_layers} layers"),
        ("vocabulary", f"{model.vocab_size} tokens"),
        ("sequence", f"at most {limits.max_model_len} tokens"),
        ("step", f"at most {tokens} tokens of {sequences} sequences"),
        ("numerics", f"{numerics.dtype}{quantized}; goldens within {numerics.tolerance:g}"),
        ("quality", quality_line(numerics.quality)),
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


def _program_table(found: Inspected) -> str:
    """Table of the programs: purpose, inputs and outputs."""
    rows = []
    for name, plan in found.view.programs[found.target].items():
        takes, gives = (
            " ".join(array.name for array in arrays)
            for arrays in (plan.spec.inputs, plan.spec.outputs)
        )
        arena = format_bytes(plan.memory.arena_bytes)
        rows.append((name, meaning_of(name), len(plan.kernels), arena, takes, gives))
    return table(rows, ("program", "what it does", "kernels", "arena", "takes", "gives"))


def _program(view: ArtifactView, target: str, name: str | None) -> str:
    programs = view.programs[target]
    if name is not None and name not in programs:
        raise UsageError(
            f"no program {name!r} in {view.path}", hint=f"It has: {', '.join(programs)}."
        )
    return name or main_of(programs)


def _target(view: ArtifactView, name: str | None, *, gpu: bool = False) -> str:
    names = [target.name for target in view.manifest.targets]
    if name is None:
        return next(iter(view.built), names[0]) if gpu else names[0]
    if name not in names:
        raise UsageError(f"no target {name!r} in {view.path}", hint=f"It has: {', '.join(names)}.")
    return name
