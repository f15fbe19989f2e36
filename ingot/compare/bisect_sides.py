"""`ingot compare A B --bisect`: which walk suits two sides, and what it found.

`blame` walks for a compile whose code gate fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ingot.artifact.plan import Buffer
from ingot.artifact.programs import PROGRAMS, main_of
from ingot.artifact.reader import Artifact
from ingot.compare.artifact_side import ArtifactSide
from ingot.compare.bisect import TracedFinding, Walk
from ingot.compare.drift import Drift, by_layer, drift
from ingot.compare.forms import HF
from ingot.compare.kernel_check import WatchedKernels, run_kernels
from ingot.compare.makers import Makers, makers_of
from ingot.compare.model_values import ModelValues, model_values
from ingot.compare.numbers_apart import Apart, numbers_apart
from ingot.compare.pair import Pair
from ingot.compare.plan_check import PlanValues, strayed
from ingot.compare.prompts import ComparedPrompt, golden_tokens
from ingot.compare.reference_side import ReferenceSide
from ingot.compare.sides import Side, open_side
from ingot.compare.steps import Steps, room_for, steps_of
from ingot.compare.stored import sources_of
from ingot.compiler.interpret import Value
from ingot.compiler.options import Progress, silent
from ingot.compiler.orders import is_order
from ingot.compiler.program_graphs import graph_of, result_of
from ingot.errors import IngotError, UsageError
from ingot.ops.scaled import Scaled
from ingot.targets.target import Weights, target_named

WHAT = {
    "weights": "was given other weights than the model's",
    "plan": "computes something else than the model does",
    "kernel": "does not leave what its instructions make of its inputs",
    "memory": "reads what was overwritten",
}


@dataclass(slots=True)
class Bisection:
    """The result of bisecting one artifact.

    Attributes:
        subject: the artifact, as the user wrote it, and `reference`, what it was held against.
        found: everything that does not do what it should, in the order of the kernels.
        drift: how far the kernels' results are from the model's; empty without a model.
        notes: what could not be looked at, and why.
        apart: of two artifacts, the matrices whose numbers differ.
        kernels: those of the artifact, for a reproducer.
    """

    subject: str
    reference: str
    kernels: WatchedKernels
    found: list[TracedFinding] = field(default_factory=list)
    drift: list[Drift] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    apart: list[Apart] = field(default_factory=list)

    @property
    def layers(self) -> dict[str, Drift]:
        """Error of the last result of each layer against the model's."""
        return by_layer(self.drift)


def bisect_pair(
    pair: Pair,
    source: Callable[[Sequence[Side]], list[ComparedPrompt]],
    worst: Sequence[str] = (),
    progress: Progress = silent,
) -> list[Bisection]:
    """Opens a pair and looks for the first fault in every artifact of it.

    `worst` names prompts that are to run first. Raises what opening raises, and as `bisect`.
    """
    with pair.opened() as (a, b):
        rank = {where: place for place, where in enumerate(worst)}
        prompts = sorted(source((a, b)), key=lambda each: rank.get(each.where, len(rank)))
        return bisect(a, b, [each.tokens for each in prompts], progress)


def bisect(
    a: Side, b: Side, prompts: Sequence[Sequence[int]], progress: Progress = silent
) -> list[Bisection]:
    """Looks for the first fault in every artifact among the sides.

    Args:
        prompts: token ids, the most telling first; as many of them as one step has room for run.

    Raises:
        UsageError: no side has a plan, or nothing has values to hold it against.
        ArtifactError, ResourceError: an artifact cannot be run here.
    """
    sides = [side for side in (a, b) if isinstance(side, ArtifactSide)]
    if not sides:
        raise UsageError(
            f"neither {a.name} nor {b.name} is an artifact, and only artifacts have a plan",
            hint="Give --bisect an artifact, and the model directory that it was compiled from.",
        )
    if len(sides) == 2:
        return _two_artifacts(sides[0], sides[1], prompts, progress)
    (subject,) = sides
    other = b if subject is a else a
    reference, notes = _reference(other, subject)
    try:
        return [_against_model(subject, reference, prompts, notes, progress)]
    finally:
        if reference is not other:
            reference.close()


def _reference(other: Side, subject: ArtifactSide) -> tuple[ReferenceSide, list[str]]:
    """The model directory behind a side, whose graph has values of every module."""
    if isinstance(other, ReferenceSide):
        return other, []
    if not other.name.startswith(HF):
        raise UsageError(
            f"{other.name} gives logits alone, and no values of its layers",
            hint=f"Hold the artifact against the model directory: ingot compare {subject.name} "
            "MODEL_DIR --bisect",
        )
    path = other.name.removeprefix(HF)
    reference = open_side(path, max_model_len=subject.manifest.limits.max_model_len)
    assert isinstance(reference, ReferenceSide), "transformers runs model directories"
    note = f"{other.name} gives logits alone; held against {path}, run in float32"
    return reference, [note]


@dataclass(slots=True)
class _Model:
    """A model directory: its graph, its parameters, and what it computes of some prompts."""

    side: ReferenceSide

    def values(self, steps: Steps) -> ModelValues:
        return model_values(self.side.graph, self.side.checkpoint.read, steps.prompts)

    def weight(self, buffer: Buffer) -> Value:
        return torch.cat([self.side.checkpoint.read(n).float() for n in sources_of(buffer)])


def _against_model(
    subject: ArtifactSide,
    reference: ReferenceSide,
    prompts: Sequence[Sequence[int]],
    notes: list[str],
    progress: Progress,
) -> Bisection:
    model = _Model(reference)
    manifest, entry = subject.manifest, subject.artifact.target
    steps, cut = _steps(subject, prompts)
    kernels = run_kernels(subject.artifact, entry, steps)
    plan, target = kernels.plan, target_named(entry.name)
    if any(is_order(weight.name) for weight in plan.of_kind("weight")):
        reference.order_columns()
    values = model.values(steps)
    made = PlanValues.of(plan, model.weight, steps.whole, steps.num_pages)
    makers, lost = _makers(model, subject)
    walk = Walk(
        kernels,
        read=reference.checkpoint.read,
        integers=reference.checkpoint.integers,
        calibrated="calibrated" in manifest.numerics.quantization,
        stray=strayed(made, values),
        makers=makers,
        rewriting=f"the rewriting for {target.kind}",
        progress=progress,
    )
    return Bisection(
        subject.name,
        reference.name,
        kernels,
        found=list(walk.findings()),
        drift=drift(kernels, made),
        notes=[*notes, *cut, *lost],
    )


def _steps(subject: ArtifactSide, prompts: Sequence[Sequence[int]]) -> tuple[Steps, list[str]]:
    """The steps that there is memory for, and what is to be said of that."""
    plan = subject.artifact.plan_of(subject.artifact.target)
    steps = steps_of(prompts, plan.limits, room_for(plan), whole_texts=subject.task != "generate")
    wanted, found = (sum(map(len, each)) for each in (prompts, steps.prompts))
    return steps, [f"run were {found} of {wanted} tokens"] if found < wanted else []


def _makers(model: _Model, subject: ArtifactSide) -> tuple[Makers, list[str]]:
    """Finds the makers of the instructions; without them, findings lack the name of the pass."""
    entry = subject.artifact.target
    plan = subject.artifact.plan_of(entry)
    program, exported = PROGRAMS[main_of(entry.programs)], model.side.graph
    graph = graph_of(exported, program, result_of(exported, program))
    try:
        return makers_of(graph, subject.manifest, plan, target_named(entry.name)), []
    except IngotError as error:
        return Makers(), [f"passes cannot be named, since they fail here: {error.found}"]


def _two_artifacts(
    a: ArtifactSide, b: ArtifactSide, prompts: Sequence[Sequence[int]], progress: Progress
) -> list[Bisection]:
    """Each by itself, with its own weights, and the plan and the numbers of the first held against
    the second's."""
    both = [
        run_kernels(each.artifact, each.artifact.target, _steps(each, prompts)[0])
        for each in (a, b)
    ]
    stray, notes = None, list[str]()
    one, other = both
    progress("bisect", "numbers of both", None)
    apart = numbers_apart(*_stored(one), *_stored(other))
    try:
        mine = PlanValues.of(one.plan, _numbers(one), one.steps.whole, one.steps.num_pages)
        theirs = PlanValues.of(other.plan, _numbers(one), other.steps.whole, other.steps.num_pages)
        stray = strayed(mine, theirs.of_model())
    except KeyError as error:
        notes.append(f"the plans are not held together: {error.args[0]} is stacked otherwise")
    return [
        Bisection(
            side.name,
            other_side.name,
            kernels,
            found=list(Walk(kernels, stray=found, progress=progress).findings()),
            apart=apart if kernels is one else [],
            notes=[*notes, "without a model directory, packed weights are taken as they are"],
        )
        for side, other_side, kernels, found in ((a, b, one, stray), (b, a, other, None))
    ]


def _stored(held: WatchedKernels) -> tuple[list[Buffer], Weights]:
    """The weights of an artifact, and what reads them."""
    return [*held.plan.of_kind("weight")], held.stored.read


def _numbers(held: WatchedKernels) -> Weights:
    """The weights of one artifact for the plan of another, in float32."""
    named = {sources_of(buffer): buffer for buffer in held.plan.of_kind("weight")}

    def weight(buffer: Buffer) -> Value:
        found = held.stored.read(named[sources_of(buffer)])
        return found.dequantize() if isinstance(found, Scaled) else found.float()

    return weight


def blame(folder: Path, model_dir: Path) -> str:
    """The first kernel of an artifact in its unfinished folder that is at fault, in words; "" where
    none can be found."""
    try:
        artifact = Artifact.open(folder, unfinished=True)
        subject = ArtifactSide(str(folder), artifact)
        longest = artifact.manifest.limits.max_model_len
        reference = ReferenceSide(str(model_dir), model_dir, longest)
        prompts = golden_tokens(subject)
        try:
            (bisection,) = bisect(subject, reference, prompts)
        finally:
            subject.close()
            reference.close()
    except IngotError:  # what failed before is told
        return ""
    if not bisection.found:
        return ""
    first = bisection.found[0].finding
    by = f", made by {first.made_by}" if first.made_by else ""
    return f"kernel {first.number}, {first.kernel} of {first.origin}{by}, {WHAT[first.where]}"
