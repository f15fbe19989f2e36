"""An artifact as `inspect` shows it: read without checking that this host can run it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ingot.artifact.manifest import Manifest
from ingot.artifact.plan import Buffer, Instruction, Plan
from ingot.artifact.reader import Artifact, is_artifact
from ingot.errors import ArtifactError


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactView:
    """The manifest and the plan of every target, by target name."""

    path: Path
    manifest: Manifest
    plans: dict[str, Plan]

    def folder_bytes(self) -> dict[str, int]:
        """Bytes of each folder of the artifact, as its manifest lists them."""
        sizes: Counter[str] = Counter()
        for name, entry in self.manifest.files.items():
            sizes[name.partition("/")[0]] += entry.size
        return dict(sizes)


def read_artifact(path: Path) -> ArtifactView:
    """Reads the manifest and the plans, checked as the runtime does before it runs them.

    Raises:
        ArtifactError: not an artifact, or one that is damaged.
    """
    if not is_artifact(path) and os.path.isfile(path / "config.json"):
        hint = f"It is a model directory. Compile it first: ingot compile {path}"
        raise ArtifactError(f"{path} is no artifact", hint=hint)
    artifact = Artifact.open(path)
    plans = {entry.name: artifact.plan_of(entry) for entry in artifact.manifest.targets}
    return ArtifactView(path=path, manifest=artifact.manifest, plans=plans)


def op_counts(plan: Plan) -> dict[str, int]:
    """How many instructions each op has, the most frequent first."""
    counts = Counter(instruction.op for instruction in plan.instructions)
    return dict(counts.most_common())


def live_bytes(plan: Plan) -> list[int]:
    """Bytes of the arena in use at each instruction, for the largest step."""
    live = [0] * len(plan.instructions)
    for slot in plan.memory.slots:
        for index in range(slot.first_use, min(slot.last_use + 1, len(live))):
            live[index] += slot.nbytes
    return live


def shape_text(buffer: Buffer) -> str:
    """Such as `bfloat16[N,256]`."""
    return f"{buffer.dtype}[{','.join(str(dim) for dim in buffer.shape)}]"


def attrs_text(instruction: Instruction) -> str:
    """Such as `eps=1e-06 window=0`."""
    return " ".join(f"{name}={value}" for name, value in instruction.attrs.items())


def names_text(names: dict[str, str]) -> str:
    """Argument names with their buffers, such as `x=%12 weight=norm.weight`."""
    return " ".join(f"{argument}={name}" for argument, name in names.items())
