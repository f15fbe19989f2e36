"""Downloading a model into the hub's cache: what ingot reads of it, and nothing else.

The order makes what is whole safe to tell: small files, weights, and the name of the revision last.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.artifact.hashing import hash_file
from ingot.artifact.lock import file_lock
from ingot.errors import (
    CheckpointError,
    HubUnreachableError,
    ModelDirError,
    ResourceError,
    listed,
)
from ingot.hub.gguf import chosen_files, headers_of
from ingot.hub.snapshots import MAIN, cache_dir, partial_of, repository, size_here
from ingot.models.checkpoints.checkpoint_files import weight_names
from ingot.models.file_names import (
    CONFIG,
    INDEX,
    SINGLE,
    TOKENIZER,
    has_tokenizer,
    small_files,
)
from ingot.models.model_dir import ModelDir, no_tokenizer
from ingot.models.other_formats import other_format
from ingot.say import say

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling


class Remote:
    """A model on the hub, at one commit: a folder, or the GGUF file that its name means.

    Raises ModelDirError or CheckpointError for one without config, tokenizer or safetensors.
    """

    def __init__(self, name: str, revision: str | None) -> None:
        from huggingface_hub import HfApi

        self.name, _, kind = name.partition(":")
        info = HfApi().model_info(self.name, revision=revision, files_metadata=True)
        self.commit = str(info.sha)
        self.files: dict[str, RepoSibling] = {f.rfilename: f for f in info.siblings or ()}
        is_folder = not kind and not self.files.keys().isdisjoint((SINGLE, INDEX))
        self.gguf = [] if is_folder else chosen_files(self.name, kind, self.files)
        self._refuse()

    @property
    def folder(self) -> Path:
        """Where its files lie in the cache, or will."""
        return repository(self.name) / "snapshots" / self.commit

    @property
    def model(self) -> Path:
        """Where the model lies, or will: a folder or a GGUF file."""
        return self.folder.joinpath(*self.gguf[:1])

    def small_model(self) -> AbstractContextManager[Path]:
        """What tells the config: the model's folder, or a GGUF file with its header alone."""
        sizes = {name: self.size(name) for name in self.gguf}
        return headers_of(self.name, self.commit, sizes) if sizes else nullcontext(self.folder)

    def size(self, file: str) -> int:
        """Bytes of a file."""
        return self.files[file].size or 0

    def fetch_small_files(self) -> None:
        """Brings the config, the tokenizer and the index of the shards."""
        # The index of a single file would be of another checkpoint.
        index = () if SINGLE in self.files else (INDEX,)
        small = (TOKENIZER,) if self.gguf else (*small_files(self.files), *index)
        if names := [f for f in small if f in self.files]:
            self._fetch(names)

    def weights(self) -> list[str]:
        """The names of the files with the tensors, once the small files are there.

        Raises CheckpointError for an index with a shard that the hub does not have.
        """
        names = self.gguf or [SINGLE]
        if not self.gguf and SINGLE not in self.files:
            names = weight_names(ModelDir.open(self.folder))
        absent = [name for name in names if name not in self.files]
        if absent:
            raise CheckpointError(
                f"{self.name} lacks shards that its {INDEX} lists: {listed(absent)}",
                hint="Tell its owner, or take another model.",
            )
        return names

    def bytes_to_come(self, names: Sequence[str]) -> int:
        """How much of the tensors is not in the cache yet, under whatever revision."""
        return sum(map(self._rest, self._missing(names)))

    def fetch_weights(self, names: Sequence[str]) -> None:
        """Brings the tensors. What an earlier try has left is gone on with."""
        self._check_disk(self.bytes_to_come(names))
        for name in self._missing(names):
            self._fetch_blob(name)
        self._fetch(names)

    def name_revision(self, revision: str | None) -> None:
        """Lets the revision mean this commit in the cache.

        The client would ask the hub, where the revision can mean a newer commit by now.
        """
        revision = revision or MAIN
        ref = repository(self.name) / "refs" / revision
        if revision == self.commit or (ref.is_file() and ref.read_text().strip() == self.commit):
            return
        ref.parent.mkdir(parents=True, exist_ok=True)
        # Not beside the ref: whatever lies there is taken for a revision.
        new = repository(self.name) / f".ref-{secrets.token_hex(4)}"
        try:
            new.write_text(self.commit)
            new.replace(ref)
        finally:
            new.unlink(missing_ok=True)

    def header(self, file: str) -> bytes:
        """The header of a file of tensors, and with it how large the file is."""
        from huggingface_hub import HfApi

        found = HfApi().parse_safetensors_file_metadata(self.name, file, revision=self.commit)
        tensors: dict[str, Any] = {
            name: {"dtype": t.dtype, "shape": t.shape, "data_offsets": t.data_offsets}
            for name, t in found.tensors.items()
        }
        return json.dumps(tensors).encode()

    def _refuse(self) -> None:
        if self.gguf:
            return
        error = other_format(self.name, self.files)
        if error:
            raise error
        lacks = "" if SINGLE in self.files or INDEX in self.files else "weights as safetensors"
        lacks = lacks if CONFIG in self.files else CONFIG
        if lacks:
            raise ModelDirError(
                f"{self.name} has no {lacks}",
                hint=f"ingot compiles models with {CONFIG}, {TOKENIZER} and {SINGLE} or shards.",
            )
        if not has_tokenizer(self.files):
            raise no_tokenizer(self.name)

    def _fetch(self, names: Sequence[str]) -> None:
        """Brings files by the hub's own client, which links those whose content is there.

        Raises HubUnreachableError for files that did not come: where the client cannot list what
        the hub has, it may return the folder as it is.
        """
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import tqdm

        class Silent(tqdm):
            def __init__(self, *args: Any, **options: Any) -> None:
                quiet = {**options, "disable": True}
                super().__init__(*args, **quiet)  # type: ignore[no-untyped-call]

        snapshot_download(
            self.name, revision=self.commit, allow_patterns=list(names), tqdm_class=Silent
        )
        if missing := self._missing(names):
            raise HubUnreachableError(
                f"files of {self.name} did not come: {listed(missing)}",
                hint="Try again; what has come is kept.",
            )

    def _missing(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if not (self.folder / name).is_file()]

    def _fetch_blob(self, name: str) -> None:
        """Brings the content of a large file to where the client looks for it.

        The client itself begins a file anew in every process.
        """
        blob = self._blob(name)
        if blob is None:  # so small that the client brings it
            return
        partial = partial_of(blob)
        wait = f"another process downloads {name} of {self.name}; waiting"
        blob.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(partial.with_suffix(".lock"), on_wait=lambda: say(wait)):
            if blob.exists():
                return
            self._append_rest(partial, name)
            if hash_file(partial) != blob.name:
                partial.unlink()
                raise HubUnreachableError(
                    f"{name} of {self.name} came damaged: its hash is not the hub's",
                    hint="It was removed. Try again, and check the network or proxy if it recurs.",
                )
            partial.replace(blob)

    def _blob(self, name: str) -> Path | None:
        """Where the content of a large file lies. None for one that the hub keeps in Git."""
        lfs = self.files[name].lfs
        return repository(self.name) / "blobs" / lfs.sha256 if lfs else None

    def _append_rest(self, partial: Path, name: str) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        with partial.open("ab") as file:
            if file.tell() > self.size(name):
                file.seek(0)
                file.truncate()
            http_get(
                hf_hub_url(self.name, name, revision=self.commit),
                file,
                resume_size=file.tell(),
                headers=build_hf_headers(),
                expected_size=self.size(name),
                displayed_filename=name,
            )

    def _rest(self, name: str) -> int:
        """How many bytes of a file are still to come."""
        blob = self._blob(name)
        if blob is None:
            return self.size(name)
        here = size_here(blob) or size_here(partial_of(blob))
        return max(self.size(name) - here, 0)

    def _check_disk(self, needed: int) -> None:
        folder = next(f for f in (cache_dir(), *cache_dir().parents) if f.exists())
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise ResourceError(
                f"{self.name} needs {megabytes(needed)} more on the disk of {folder}, which has "
                f"{megabytes(free)} free",
                hint="Free some space (`ingot list` shows what there is), or set HF_HOME to a "
                "folder on another disk.",
            )


def begin(name: str, revision: str | None) -> Remote:
    """A model whose small files are in the cache. Raises the client's errors and ours."""
    remote = Remote(name, revision)
    remote.fetch_small_files()
    return remote


def finish(remote: Remote, revision: str | None) -> Path:
    """Brings what is new of the weights; returns where the model is. Raises as `begin` does."""
    weights = remote.weights()
    to_come = remote.bytes_to_come(weights)
    if to_come:
        say(f"downloading {remote.name}, {megabytes(to_come)}, into {cache_dir()}")
    remote.fetch_weights(weights)
    remote.name_revision(revision)
    return remote.model


def check_family(path: Path) -> None:
    """Refuses a model that no family builds, by what tells its config, before its weights come."""
    from ingot.models.registry import load_config

    load_config(ModelDir.open(path))


@contextmanager
def outline(name: str, revision: str | None) -> Iterator[Path]:
    """A folder with the small files of a model and its weights without their numbers.

    The files of weights are as long as the real ones, and take no room on the disk.
    """
    remote = begin(name, revision)
    if remote.gguf:
        with remote.small_model() as model:
            yield model
        return
    with tempfile.TemporaryDirectory(prefix="ingot-outline-") as temporary:
        folder = Path(temporary) / name.rpartition("/")[2]
        folder.mkdir()
        for file in remote.folder.iterdir():
            if file.suffix != ".safetensors":
                (folder / file.name).symlink_to(file.resolve())
        for weights in remote.weights():
            header = remote.header(weights)
            with (folder / weights).open("wb") as out:
                out.write(len(header).to_bytes(8, "little") + header)
                out.truncate(out.tell() + _data_bytes(header))
        yield folder


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _data_bytes(header: bytes) -> int:
    return max((tensor["data_offsets"][1] for tensor in json.loads(header).values()), default=0)
