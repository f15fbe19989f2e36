"""An artifact as `inspect` shows it; this host need not be able to run it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ingot.artifact.drivers import driver_text
from ingot.artifact.launches import BuiltLaunches, decode_built
from ingot.artifact.layer_graphs import FILE as LAYERS
from ingot.artifact.layer_graphs import LayerGraphs, decode_layers
from ingot.artifact.manifest import Manifest, TargetEntry
from ingot.artifact.plan import Buffer, Group, Plan
from ingot.artifact.programs import main_of
from ingot.artifact.reader import Artifact
from ingot.artifact.target import CUDA_TARGETS
from ingot.artifact.traits import origin_of
from ingot.cli.inspect.gpu import GpuKernels, gpu_kernels

LAYER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactView:
    """The manifest, the plans of every target, and the kernels of GPUs, by target name.

    `programs` has the plan of each program, by its name. `layers` is what the passes made of some
    layers; None in an artifact of an older ingot.
    """

    path: Path
    manifest: Manifest
    programs: dict[str, dict[str, Plan]]
    built: dict[str, BuiltLaunches] = field(default_factory=dict)
    layers: LayerGraphs | None = None

    @property
    def plans(self) -> dict[str, Plan]:
        """Plans of the main program, by target name."""
        return {target: plans[main_of(plans)] for target, plans in self.programs.items()}

    def folder_bytes(self) -> dict[str, int]:
        """Bytes of each folder of the artifact, as its manifest lists them."""
        sizes: Counter[str] = Counter()
        for name, entry in self.manifest.files.items():
            sizes[name.partition("/")[0]] += entry.size
        return dict(sizes)

    def code_bytes(self, target: TargetEntry) -> int:
        """Bytes of what a target runs: its file of kernels, and binaries that it names."""
        kernels = [program.kernels for program in target.programs.values()]
        binaries = tuple(f"{name.rpartition('/')[0]}/cubins/" for name in kernels)
        files = self.manifest.files.items()
        return sum(e.size for name, e in files if name in kernels or name.startswith(binaries))

    def driver(self, target: str) -> str:
        """The driver that a target needs, in words; nothing for one that is no GPU."""
        return driver_text(self.built[target].least_cuda) if target in self.built else ""

    def gpu_kernels(self, target: str) -> GpuKernels | None:
        """The binaries of a target that is a GPU."""
        if target not in self.built:
            return None
        level = target.partition(":")[2]
        return gpu_kernels(self.plans[target], self.built[target], level)


def read_artifact(path: Path) -> ArtifactView:
    """Reads all but the weights, with the checks that the runtime makes.

    Raises:
        ArtifactError: it is not an artifact, or it is damaged.
    """
    artifact = Artifact.open(path)
    entries = artifact.manifest.targets
    programs = {
        entry.name: {program: artifact.plan_of(entry, program) for program in _in_order(entry)}
        for entry in entries
    }
    files = {entry.name: entry.main.kernels for entry in entries if entry.name in CUDA_TARGETS}
    built = {name: decode_built(artifact.read(file), file=file) for name, file in files.items()}
    layers = None
    if LAYERS in artifact.manifest.files:
        layers = decode_layers(artifact.read(LAYERS), file=LAYERS)
    return ArtifactView(
        path=path,
        manifest=artifact.manifest,
        programs=programs,
        built=built,
        layers=layers,
    )


def _in_order(entry: TargetEntry) -> list[str]:
    """The programs of a target, the main one first."""
    main = main_of(entry.programs)
    return sorted(entry.programs, key=lambda program: (program != main, program))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelView:
    """A kernel of a plan in words: its primitives, what it reads and what it writes."""

    name: str
    ops: tuple[str, ...]
    origin: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: str


def kernel_views(plan: Plan) -> list[KernelView]:
    """The kernels of a plan, in order."""
    return [_view(plan, group) for group in plan.kernels]


def layer_of(origin: str) -> int | None:
    """The number of the layer that a module is in: 3 of `model.layers.3.mlp`."""
    found = LAYER.search(origin)
    return int(found[1]) if found else None


def kernels_of(plan: Plan, layer: int | None) -> list[tuple[int, Group]]:
    """The kernels of a layer, or all of them, each with its number in the step."""
    return [
        (number, group)
        for number, group in enumerate(plan.kernels)
        if layer is None or layer in {layer_of(i.origin) for i in plan.members(group)}
    ]


def _view(plan: Plan, group: Group) -> KernelView:
    members = plan.members(group)
    made = {name for i in members for name in i.outputs.values()}
    reads = dict.fromkeys(name for i in members for name in i.inputs.values())
    return KernelView(
        name=group.kernel,
        ops=tuple(i.op for i in members),
        origin=origin_of(members),
        inputs=tuple(name for name in reads if plan.root(name).name not in made),
        outputs=tuple(
            name
            for i in members
            for name in i.outputs.values()
            if plan.buffer(name).kind != "inner"
        ),
        attrs=" ".join(
            dict.fromkeys(f"{name}={value}" for i in members for name, value in i.attrs.items())
        ),
    )


def kernel_counts(plan: Plan) -> dict[str, int]:
    """Counts each kernel of a step, the most frequent first."""
    return dict(Counter(group.kernel for group in plan.kernels).most_common())


def live_bytes(plan: Plan) -> list[int]:
    """Bytes of the arena that are in use at each kernel of the largest step."""
    live = [0] * len(plan.kernels)
    for slot in plan.memory.slots:
        for index in range(slot.first_use, min(slot.last_use + 1, len(live))):
            live[index] += slot.nbytes
    return live


def shape_text(buffer: Buffer) -> str:
    """For example `bfloat16[N,256]`."""
    return f"{buffer.format}[{','.join(str(dim) for dim in buffer.shape)}]"
