"""The hub's own cache: which models lie whole in it, and their end. Nothing here asks the hub."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.errors import IngotError

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo

MAIN = "main"  # the revision of a model of which none is named
PARTIAL = ".ingot.incomplete"  # ends the name of a file that has not come whole


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model in the hub's cache.

    Attributes:
        name: owner/name.
        whole: whether a revision has all that ingot needs; if not, ingot began to download one.
        nbytes: its size on the disk, of all its revisions and files.
        last_used: when a program read a file of it, in seconds since 1970.
        commits: its revisions in the cache.
    """

    name: str
    whole: bool
    nbytes: int
    last_used: float
    commits: tuple[str, ...]


def cached(name: str, revision: str | None = None) -> Path | None:
    """The folder or the GGUF file of a model that lies whole in the hub's cache."""
    folder, kind = repository(name), name.partition(":")[2]
    ref = folder / "refs" / (revision or MAIN)
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = folder / "snapshots" / commit if commit else None
    if snapshot is None or (not kind and is_whole(snapshot)):
        return snapshot
    return whole_gguf(snapshot, kind)


def whole_gguf(folder: Path, kind: str = "") -> Path | None:
    """The first file of the GGUF model of that kind in a folder, if it is one and all are there."""
    from ingot.hub.gguf import chosen_files

    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
    try:
        files = chosen_files(folder.name, kind, names)
    except IngotError:
        return None
    whole = files and all((folder / name).is_file() for name in files)
    return folder / files[0] if whole else None


def is_whole(folder: Path) -> bool:
    """Whether a folder has all that a model needs. Weights are the last to come into it."""
    from ingot.models.checkpoints.checkpoint_files import weight_names
    from ingot.models.file_names import CONFIG, has_tokenizer
    from ingot.models.model_dir import ModelDir

    try:
        weights = weight_names(ModelDir.at(folder))
    except (OSError, IngotError):
        return False
    there = {path.name for path in folder.iterdir() if path.is_file()}
    return bool(weights) and there >= {CONFIG, *weights} and has_tokenizer(there)


def model_size(model: Path) -> int:
    """Bytes of the files of a model, a folder or a GGUF file."""
    from ingot.models.gguf.names import part_names

    parts = [model.parent / name for name in part_names(model.name)]
    files = model.iterdir() if model.is_dir() else parts
    return sum(file.stat().st_size for file in files if file.is_file())


def repository(name: str) -> Path:
    """The folder of a model in the hub's cache, whichever GGUF file is meant; its layout is the
    hub's own."""
    return cache_dir() / f"models--{name.partition(':')[0].replace('/', '--')}"


def partial_of(blob: Path) -> Path:
    """Where a large file grows until it is whole."""
    return blob.with_name(blob.name + PARTIAL)


def size_here(file: Path) -> int:
    """Bytes of a file; 0 if it is not there, as one that has come whole meanwhile."""
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


def cache_dir() -> Path:
    """The hub's cache, which other programs share."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def models() -> list[HubModel]:
    """Those that are whole, and those that ingot began to download; the last used first."""
    scan = _scan()
    repos = [repo for repo in (scan.repos if scan else ()) if repo.repo_type == "model"]
    found = (_model(repo) for repo in repos)
    return sorted((model for model in found if model), key=lambda model: -model.last_used)


def remove_model(model: HubModel) -> None:
    """Removes all its revisions, which other programs may use as well."""
    scan = _scan()
    if scan:
        # The client looks for a commit in all that it is given. A model that was renamed on the
        # hub can lie there under both names, with the same commits.
        own = {r for r in scan.repos if (r.repo_type, r.repo_id) == ("model", model.name)}
        replace(scan, repos=frozenset(own)).delete_revisions(*model.commits).execute()


def _model(repo: CachedRepoInfo) -> HubModel | None:
    """None for one that other programs keep, of which ingot could read nothing."""
    folders = [revision.snapshot_path for revision in repo.revisions]
    whole = any(is_whole(folder) or whole_gguf(folder) for folder in folders)
    partial = sum(map(size_here, repo.repo_path.glob(f"blobs/*{PARTIAL}")))
    if not whole and not partial:
        return None
    commits = sorted(revision.commit_hash for revision in repo.revisions)
    nbytes = repo.size_on_disk + partial
    return HubModel(repo.repo_id, whole, nbytes, repo.last_accessed, tuple(commits))


def _scan() -> HFCacheInfo | None:
    """None where there is no cache."""
    from huggingface_hub import scan_cache_dir

    folder = cache_dir()
    return scan_cache_dir(folder) if os.path.isdir(folder) else None
