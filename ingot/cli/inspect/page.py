"""The page of `ingot inspect --html`: the values that the templates in `html/` show.

The page is one file: style and script are parts of it, and it loads nothing.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import jinja2
import msgspec

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.cost import StepShape
from ingot.artifact.manifest import TargetEntry
from ingot.artifact.quality import quality_line
from ingot.artifact.step_cost import kernel_costs, step_cost
from ingot.artifact.target import kind_of_name
from ingot.cli.inspect.gpu import KERNEL_HEADER, READ_HEADER, notes
from ingot.cli.inspect.inspected import Inspected
from ingot.cli.inspect.memory import LEFT_OVER, machines
from ingot.cli.inspect.view import ArtifactView, kernel_counts, kernel_views, live_bytes
from ingot.cli.inspect.view import shape_text as shape
from ingot.cli.numbers import format_bytes, format_count

COLORS = 10  # the style defines --c0 to --c9
X86 = "x86_64"


def artifact_page(found: Inspected) -> str:
    """The page of an artifact, with the plan of one of its targets."""
    page = _environment().get_template("page.html")
    return page.render(
        found=found,
        target=found.target,
        manifest=found.view.manifest,
        plan=found.plan,
        cards=_cards(found),
        quality=quality_line(found.view.manifest.numerics.quality),
        **_deployment(found),
        **_inside(found),
        **_kernels(found),
    )


@cache
def _environment() -> jinja2.Environment:
    folder = files("ingot.cli.inspect") / "html"
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text("utf-8")),
    )
    environment.filters.update(
        bytes=format_bytes,
        count=format_count,
        shape=shape,
        plain=msgspec.to_builtins,
        parts=parts,
    )
    return environment


def parts(name: str) -> list[str]:
    """The parts of a name, after each of which it may go on in the next line."""
    return re.split(r"(?<=[._])(?=\w)", name)


def _deployment(found: Inspected) -> dict[str, object]:
    """Values of the part on deployment."""
    need, path = found.memory, shlex.quote(str(found.view.path))
    return {
        "need": need,
        "machines": machines(found.target, need),
        "left_over": LEFT_OVER,
        "needs": [_needs(found.view, entry) for entry in found.view.manifest.targets],
        "token": step_cost(found.plan, StepShape()),
        "is_cpu": kind_of_name(found.target) == "cpu",
        "commands": {
            "bench": f"ingot bench {path} --json > bench.json",
            "show": f"ingot inspect {path} \\\n  --html page.html --bench bench.json",
            "verify": f"ingot inspect {path} \\\n  --html page.html --verify",
        },
    }


def _inside(found: Inspected) -> dict[str, object]:
    """Values of the part on what the compiler did: layers, ledger, files and memory."""
    kernels = kernel_views(found.plan)
    makers = {name: kernel.name for kernel in kernels for name in kernel.outputs}
    return {
        "layers": found.layers,
        "folders": sorted(found.view.folder_bytes().items(), key=lambda item: -item[1]),
        "counts": list(kernel_counts(found.plan).items()),
        "groups": found.entry.main.groups,
        "makers": makers,
        "colors": COLORS,
        "legend": {name: i % COLORS for i, name in enumerate(dict.fromkeys(makers.values()))},
        "live": live_bytes(found.plan),
    }


def _kernels(found: Inspected) -> dict[str, object]:
    """Every kernel with what it costs, and the binaries of a GPU's."""
    plan = found.plan
    context = min(512, plan.limits.max_model_len)
    costs = kernel_costs(plan, StepShape(context=context))
    return {
        "context": context,
        "kernels": list(zip(kernel_views(plan), costs, strict=True)),
        "gpu": found.view.gpu_kernels(found.target),
        "gpu_headers": (KERNEL_HEADER, READ_HEADER),
        "notes": notes,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetNeeds:
    """Requirements of a target, and the bytes of its code."""

    name: str
    machine: str
    features: tuple[str, ...]
    driver: str
    code_bytes: int


def _needs(view: ArtifactView, entry: TargetEntry) -> TargetNeeds:
    level = ARCHITECTURES.get(entry.name.partition(":")[2])
    machine = "any machine"
    if level is not None:
        major, minor = divmod(level.number, 10)
        machine = f"NVIDIA GPU of compute capability {major}.{minor}, such as {level.card}"
    elif X86 in entry.requires:
        machine = "x86-64 processor, Linux"
    features = tuple(n for n in entry.requires if n != X86 and level is None)
    return TargetNeeds(
        name=entry.name,
        machine=machine,
        features=features,
        driver=view.driver(entry.name),
        code_bytes=view.code_bytes(entry),
    )


def _cards(found: Inspected) -> tuple[tuple[str, str], ...]:
    """The figures of a target: a number and what it counts."""
    plan, manifest, model = found.plan, found.view.manifest, found.view.manifest.model
    numerics, limits = manifest.numerics, manifest.limits
    longest = format_bytes(model.kv_bytes_per_token * limits.max_model_len)
    token = format_bytes(model.kv_bytes_per_token)
    cache = (token, f"KV cache a token in {plan.kv_dtype}; {longest} a full sequence")
    stored = numerics.dtype if numerics.quantization == "none" else numerics.quantization
    return (
        (format_count(model.num_parameters), f"parameters, {model.num_layers} layers"),
        (format_bytes(found.weight_bytes), f"weights in {stored}"),
        (format_bytes(plan.memory.arena_bytes), "arena of a step"),
        *([cache] if plan.page_sizes() or not plan.slot_bytes else []),
        *([(format_bytes(plan.slot_bytes), "record of a sequence")] if plan.slot_bytes else []),
        (f"{limits.max_model_len}", "tokens in a sequence at most"),
        (f"{limits.max_num_seqs}", "sequences at once at most"),
    )
