"""The manifest: what an artifact holds, which hosts can run it, and the hash of every file."""

from __future__ import annotations

from dataclasses import dataclass, field

from ingot.artifact.plan import Limits
from ingot.artifact.pooler import Pooler
from ingot.artifact.programs import ENCODE, STEP, TOKENS, main_of
from ingot.artifact.quality import Quality, VectorQuality

FORMAT_VERSION = (3, 5)  # a reader refuses another major version, and reads a newer minor one


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model as the runtime needs to know it."""

    name: str
    architecture: str
    vocab_size: int
    num_layers: int
    num_parameters: int
    bos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """Expected and found matches of a pass in a program; `tier` is "exact" or "numeric"."""

    name: str
    tier: str
    expected: int | None
    matched: int
    program: str = STEP.name


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """Number of groups of a kind that a program's structure allows, and that a target formed.

    `reasons` says in words why the others were not formed, and how often for each reason.
    """

    name: str
    allowed: int
    formed: int
    reasons: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEntry:
    """One program as a target runs it; paths are relative to the artifact."""

    plan: str
    kernels: str
    groups: tuple[GroupEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEntry:
    """One target's part of the artifact: its programs, by name.

    Attributes:
        requires: the flags that a host must have; see `host_flags`.
        core_cache_bytes: second-level cache for each processor that its kernels are cut for; with
            less they are slower and nothing else. 0 where that is no matter, or not known.
        grid: how many tokens recurrences take up together, which decides their last bits; 0 for one
            by one, or where there are none.
    """

    name: str
    requires: tuple[str, ...]
    layout: str
    abi: int
    programs: dict[str, ProgramEntry]
    core_cache_bytes: int = 0
    grid: int = 0

    @property
    def main(self) -> ProgramEntry:
        """What the artifact is for."""
        return self.programs[main_of(self.programs)]


AS_STORED = ", as in the checkpoint"  # ends a quantization whose integers the checkpoint had


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The arithmetic of the model: dtype, quantization, tolerance and quality.

    `tolerance` is the mean |error| that its golden log-probabilities may have, or the relative
    error of its golden rows. `quality` is what its number formats cost on text, and `vectors` what
    they cost the vectors of texts; None where that was not measured.
    """

    dtype: str
    quantization: str
    tolerance: float
    quality: Quality | None = None
    vectors: VectorQuality | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file's size and hash.

    `header_sha256` is the hash of the header of a safetensors file, so that the header can be
    checked without reading the tensors. It is empty for other files.
    """

    size: int
    sha256: str
    header_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of `manifest.json`.

    `pooler` says what a model makes of whole texts; None of one that generates alone. `files` lists
    every other file of the artifact by its relative path. `digest` is the hash of the manifest
    itself, and identifies the whole artifact. The writer fills in both.
    """

    format: tuple[int, int]
    ingot_version: str
    model: ModelInfo
    limits: Limits
    numerics: Numerics
    targets: tuple[TargetEntry, ...]
    ledger: tuple[LedgerEntry, ...]
    pooler: Pooler | None = None
    files: dict[str, FileEntry] = field(default_factory=dict)
    digest: str = ""

    @property
    def main(self) -> str:
        """The program that the artifact is for."""
        return main_of(name for target in self.targets for name in target.programs)

    @property
    def encodes(self) -> bool:
        """Tells whether the model reads whole texts, and generates none."""
        return self.main in (ENCODE.name, TOKENS.name)

    def ledger_of(self, program: str) -> tuple[LedgerEntry, ...]:
        """Entries of the ledger for a program."""
        return tuple(entry for entry in self.ledger if entry.program == program)
