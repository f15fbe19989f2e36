"""The hub's own cache: which models lie whole in it, and their end. Nothing here asks the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.errors import IngotError

if TYPE_CHECKING:
    from huggingface_hub import HFCacheInfo

MAIN = "main"  # the revision of a model of which none is named


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model in the hub's cache.

    Attributes:
        name: owner/name.
        nbytes: its size on the disk, of all its revisions and files.
        last_used: when a program read a file of it, in seconds since 1970.
        commits: its revisions in the cache.
    """

    name: str
    nbytes: int
    last_used: float
    commits: tuple[str, ...]


def cached(name: str, revision: str | None = None) -> Path | None:
    """The folder of a model that lies whole in the hub's cache."""
    folder = repository(name)
    ref = folder / "refs" / (revision or MAIN)
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = folder / "snapshots" / commit if commit else None
    return snapshot if snapshot and is_whole(snapshot) else None


def is_whole(folder: Path) -> bool:
    """Whether a folder has all that a model needs. Weights are the last to come into it."""
    from ingot.models.checkpoint_files import weight_names
    from ingot.models.file_names import CONFIG, TOKENIZER

    try:
        weights = weight_names(folder)
    except IngotError:
        return False
    return bool(weights) and all((folder / n).is_file() for n in (CONFIG, TOKENIZER, *weights))


def repository(name: str) -> Path:
    """The folder of a model in the hub's cache; its layout is the hub's own."""
    return cache_dir() / f"models--{name.replace('/', '--')}"


def cache_dir() -> Path:
    """The hub's cache, which other programs share."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def models() -> list[HubModel]:
    """Those of which a revision has all that ingot needs, the last used first."""
    scan = _scan()
    found = [
        HubModel(
            repo.repo_id,
            repo.size_on_disk,
            repo.last_accessed,
            tuple(sorted(revision.commit_hash for revision in repo.revisions)),
        )
        for repo in (scan.repos if scan else ())
        if repo.repo_type == "model" and any(is_whole(r.snapshot_path) for r in repo.revisions)
    ]
    return sorted(found, key=lambda model: -model.last_used)


def remove_model(model: HubModel) -> None:
    """Removes all its revisions, which other programs may use as well."""
    scan = _scan()
    if scan:
        scan.delete_revisions(*model.commits).execute()


def _scan() -> HFCacheInfo | None:
    """None where there is no cache."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        return scan_cache_dir(cache_dir())
    except CacheNotFound:
        return None
