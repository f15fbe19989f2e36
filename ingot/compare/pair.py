"""Opening the two sides of a comparison."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ingot.artifact.reader import Artifact
from ingot.artifact.tree import MANIFEST, is_artifact
from ingot.compare.forms import DOES, HF, Task
from ingot.compare.prompts import max_len
from ingot.compare.sides import Side, check_there, open_side
from ingot.errors import UsageError
from ingot.hub.names import hub_name
from ingot.models.file_names import CONFIG
from ingot.models.model_dir import ModelDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two sides of a comparison, as the user wrote them; the second is the reference.

    Attributes:
        targets: what artifacts run as: none, one for all, or one for each.
        revision: of the models on the hub.
        dtype: what transformers computes in; "" is float32.
    """

    names: tuple[str, str]
    targets: tuple[str, ...] = ()
    revision: str | None = None
    dtype: str = ""

    def __post_init__(self) -> None:
        for name in self.names:  # both, before either takes minutes
            check_there(name)
        found = sum(map(_is_artifact, self.names))
        if len(self.targets) > max(found, 1) or (self.targets and not found):
            raise UsageError(
                f"{len(self.targets)} targets for {found} artifacts",
                hint="--target names the target of all artifacts, or one for each: T,U.",
            )
        if self.dtype and not any(name.startswith(HF) for name in self.names):
            raise UsageError("--hf-dtype is given, but no side is hf:", hint="Leave it out.")
        if self.revision and not any(hub_name(n.removeprefix(HF)) for n in self.names):
            raise UsageError("--revision is given, but no side is on the hub", hint="Leave it out.")

    @contextmanager
    def opened(self) -> Iterator[tuple[Side, Side]]:
        """Both sides, until the end of the block.

        Raises UsageError for different vocabularies and tasks, and what `open_side` raises.

        Artifacts come first: what they were compiled for fixes the rotary frequencies of a plain
        module in the same way.
        """
        self._check_vocabularies(*map(declared_vocab_size, self.names))
        targets = dict(zip(self._artifacts(), self.targets * 2, strict=False))  # one is for both
        opened: dict[int, Side] = {}
        with ExitStack() as stack:
            for index in sorted((0, 1), key=lambda i: not _is_artifact(self.names[i])):
                name = self.names[index]
                side = open_side(
                    name,
                    target=targets.get(index),
                    max_model_len=max_len(list(opened.values())),
                    revision=self.revision if hub_name(name.removeprefix(HF)) else None,
                    dtype=self.dtype or "float32",
                )
                stack.callback(side.close)
                opened[index] = side
            self._check_vocabularies(opened[0].vocab_size, opened[1].vocab_size)
            self._check_tasks(opened[0].task, opened[1].task)
            yield opened[0], opened[1]

    def same_files(self) -> bool:
        """Tells whether both are artifacts with the same files, byte for byte.

        Raises ArtifactError for one that is damaged.
        """
        folders = [Path(name) for name in self.names]
        if len(self._artifacts()) < 2 or not _equal(*(each / MANIFEST for each in folders)):
            return False
        for folder in {os.path.realpath(each) for each in folders}:
            Artifact.open(folder, "full", flags=frozenset())
        return True

    def _check_vocabularies(self, one: int | None, other: int | None) -> None:
        """Raises UsageError for sizes that differ; nothing can be said of an unknown one."""
        if one is not None and other is not None and one != other:
            raise UsageError(
                f"{self.names[0]} has a vocabulary of {one} tokens, and {self.names[1]} one of "
                f"{other}",
                hint="Only models of one vocabulary can be compared.",
            )

    def _check_tasks(self, one: Task, other: Task) -> None:
        """Raises UsageError for sides of which one reads whole texts otherwise than the other."""
        if one != other:
            raise UsageError(
                f"{self.names[0]} {DOES[one]}, and {self.names[1]} {DOES[other]}",
                hint="Only models that do the same can be compared.",
            )

    def _artifacts(self) -> list[int]:
        return [index for index, name in enumerate(self.names) if _is_artifact(name)]


def _is_artifact(name: str) -> bool:
    return is_artifact(Path(name))


def declared_vocab_size(name: str) -> int | None:
    """The size that the small files of a side name, before it is opened, which can take minutes;
    None where they name none."""
    path = Path(name.removeprefix(HF))
    if is_artifact(path):
        return Artifact.open(path, flags=frozenset()).manifest.model.vocab_size
    try:
        folder = ModelDir.at(path)
    except OSError:  # told by whoever opens the side
        return None
    if not folder.has(CONFIG):
        return None
    values = folder.config
    text = values.get("text_config")
    size = (values | text if isinstance(text, dict) else values).get("vocab_size")
    return size if isinstance(size, int) else None


def _equal(one: Path, other: Path) -> bool:
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:  # told by whoever opens the artifact
        return False
