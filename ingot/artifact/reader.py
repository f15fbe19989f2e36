"""Reading an artifact: every file is checked before any of its code can run."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from ingot.artifact.codec import decode_manifest, decode_plan
from ingot.artifact.device import flags_and_gpu
from ingot.artifact.hashing import hash_fd, in_threads
from ingot.artifact.lock import hold
from ingot.artifact.manifest import FileEntry, Manifest, TargetEntry
from ingot.artifact.plan import Plan
from ingot.artifact.select import best_target, choose_target
from ingot.artifact.tensors import TensorFile, read_header
from ingot.artifact.tree import MANIFEST, UNFINISHED, list_files, open_file
from ingot.errors import ArtifactError, UsageError

Check = Literal["fast", "full"]
MAX_MANIFEST_BYTES = 64 << 20
_AGAIN = "Compile it again, or fetch it again if it was copied."
_COMPILE = "An artifact is a folder that `ingot compile` writes."
_WEIGHTS = "weights/"


@dataclass(frozen=True)
class Artifact:
    """An artifact whose files match its manifest.

    `check="fast"` hashes everything but the tensors of the weights, and checks their sizes and
    headers. `check="full"` hashes everything.
    """

    path: Path
    manifest: Manifest
    flags: frozenset[str] = field(repr=False)  # of the device that it is opened for
    gpu: int = 0  # the number of that device, if it is a GPU
    _plans: dict[str, Plan] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def open(
        cls,
        path: str | Path,
        check: Check = "fast",
        *,
        device: str = "auto",
        flags: frozenset[str] | None = None,
        unfinished: bool = False,
    ) -> Artifact:
        """Opens and checks the artifact at `path`.

        The cache does not remove its folder while this object lives. `device` is "cpu", "cuda:0" or
        "auto": a GPU that runs one of its targets, or else the CPU. `flags` say what it runs,
        instead of asking it. `unfinished` allows a writer's folder that does not have its name yet,
        for the checks before it gets one.

        Raises ArtifactError, naming the file, for anything damaged, missing or left over, and what
        `flags_and_gpu` raises.
        """
        if check not in ("fast", "full"):
            raise UsageError(f"check is {check!r}", hint='Supported: "fast" and "full".')
        root = Path(path)
        held = _hold(root)
        try:
            manifest = _read_manifest(root, unfinished)
            names = [target.name for target in manifest.targets]
            known = flags_and_gpu(device, names) if flags is None else (flags, 0)
            artifact = cls(root, manifest, *known)
        except BaseException:
            held()
            raise
        weakref.finalize(artifact, held)
        try:
            artifact._check_listing()
            artifact._check_files(check)
        except ArtifactError as error:
            raise ArtifactError(f"{root}: {error.found}", hint=_AGAIN) from error
        except OSError as error:
            raise ArtifactError(f"{root} cannot be read: {error}", hint=_AGAIN) from error
        return artifact

    @property
    def created(self) -> int:
        """When its manifest was written, which comes last; in seconds since 1970."""
        return int((self.path / MANIFEST).stat().st_mtime)

    @cached_property
    def target(self) -> TargetEntry:
        """The best target for this host. Raises IncompatibleHostError when none fits."""
        return choose_target(self.manifest, self.flags, self.path)

    @cached_property
    def plan(self) -> Plan:
        """The plan of this host's target, or of the first if none fits: to read, not to run."""
        return self.plan_of(best_target(self.manifest, self.flags) or self.manifest.targets[0])

    def plan_of(self, entry: TargetEntry, program: str = "") -> Plan:
        """The plan of a target's program, by default of the main one.

        Raises ArtifactError if its limits are not those of the manifest, and KeyError for a program
        that it does not have.
        """
        name = (entry.programs[program] if program else entry.main).plan
        if name in self._plans:
            return self._plans[name]
        plan = decode_plan(self.read(name), file=name)
        if plan.limits != self.manifest.limits:
            raise ArtifactError(
                f"{name} is for {plan.limits}, the manifest for {self.manifest.limits}",
                hint=_AGAIN,
            )
        self._plans[name] = plan
        return plan

    def names(self, folder: str) -> list[str]:
        """The artifact's files under a folder, sorted."""
        return sorted(name for name in self.manifest.files if name.startswith(f"{folder}/"))

    def read(self, name: str) -> bytes:
        """A file's bytes. Their hash is the manifest's, even if the file changes meanwhile.

        Raises ArtifactError if the hash differs, and KeyError for a name not in the manifest.
        """
        entry = self.manifest.files[name]
        fd = open_file(self.path, name)
        with os.fdopen(fd, "rb") as file:
            _check_size(fd, name, entry)
            data = file.read(entry.size + 1)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise ArtifactError(f"{name}: its hash is not the manifest's", hint=_AGAIN)
        return data

    def open_weights(self, layout: str) -> tuple[int, TensorFile]:
        """The descriptor of a layout's weights, which the caller closes, and the checked header."""
        name = weights_name(layout)
        fd = open_file(self.path, name)
        try:
            return fd, _check_header(fd, name, self.manifest.files[name])
        except BaseException:
            os.close(fd)
            raise

    def _check_listing(self) -> None:
        found = list_files(self.path) - {MANIFEST}
        _refuse(sorted(set(self.manifest.files) - found), "is missing")
        _refuse(sorted(found - set(self.manifest.files)), "is not in the manifest")
        for entry in self.manifest.targets:
            programs = (f for p in entry.programs.values() for f in (p.plan, p.kernels))
            needed = (*programs, weights_name(entry.layout))
            _refuse([n for n in needed if n not in self.manifest.files], "is not in the manifest")
        if not self.manifest.targets:
            raise ArtifactError("the manifest lists no target")

    def _check_files(self, check: Check) -> None:
        def checked(name: str, stopped: Callable[[], bool]) -> None:
            _check_file(self.path, name, self.manifest.files[name], check, stopped)

        # Largest first, so that the threads finish together.
        names = sorted(self.manifest.files, key=lambda n: -self.manifest.files[n].size)
        if check == "full":
            in_threads(checked, names)
        else:
            for name in names:
                checked(name, lambda: False)


def weights_name(layout: str) -> str:
    """The weights file of a layout."""
    return f"{_WEIGHTS}{layout}.safetensors"


def _hold(root: Path) -> Callable[[], object]:
    """Holds the folder; what is returned lets it go."""
    try:
        return partial(os.close, hold(root))
    except (OSError, ValueError):  # no folder, which is told later, by name
        return lambda: None


def _read_manifest(root: Path, unfinished: bool) -> Manifest:
    # Of os.path, which takes any path; Path's own raise for some.
    if not os.path.isdir(root):
        what = "is a file" if os.path.exists(root) else "does not exist"
        raise ArtifactError(f"{root} {what}", hint=_COMPILE)
    if not unfinished and UNFINISHED.match(root.resolve().name):
        raise ArtifactError(f"{root} was never finished", hint="Compile it again.")
    if not os.path.lexists(root / MANIFEST):
        raise ArtifactError(f"{root} has no {MANIFEST}", hint=_COMPILE)
    try:
        with os.fdopen(open_file(root, MANIFEST), "rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except ArtifactError as error:
        raise ArtifactError(f"{root}: {error.found}") from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise ArtifactError(f"{root}: {MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes")
    return decode_manifest(data, file=str(root / MANIFEST))


def _check_file(
    root: Path, name: str, entry: FileEntry, check: Check, stopped: Callable[[], bool]
) -> None:
    fd = open_file(root, name)
    try:
        _check_size(fd, name, entry)
        weights = name.startswith(_WEIGHTS)
        if weights:
            _check_header(fd, name, entry)
        if (check == "full" or not weights) and hash_fd(fd, stopped) != entry.sha256:
            raise ArtifactError(f"{name}: its hash is not the manifest's")
    finally:
        os.close(fd)


def _check_size(fd: int, name: str, entry: FileEntry) -> None:
    size = os.fstat(fd).st_size
    if size != entry.size:
        raise ArtifactError(f"{name}: {size} bytes, the manifest has {entry.size}", hint=_AGAIN)


def _check_header(fd: int, name: str, entry: FileEntry) -> TensorFile:
    header = read_header(fd, name)
    if header.header_sha256 != entry.header_sha256:
        raise ArtifactError(f"{name}: the hash of its header is not the manifest's", hint=_AGAIN)
    return header


def _refuse(names: Iterable[str], fault: str) -> None:
    for name in names:
        raise ArtifactError(f"{name} {fault}")
