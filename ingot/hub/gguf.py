"""GGUF files of repositories on the hub: which one a name means, and what its header says."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ingot.errors import CheckpointError, ModelNotFoundError, listed
from ingot.models.gguf.container import GgufFile
from ingot.models.gguf.names import model_names, part_names

HEADERS = (2**24, 2**26, 2**28)  # bytes of a file that are asked for until its header is whole


def chosen_files(name: str, kind: str, names: Iterable[str]) -> list[str]:
    """The files of the GGUF model that is meant, in order; none where there is none and none is
    asked for.

    Args:
        name: of the repository, for messages.
        kind: what stands in the name of the file, such as Q4_K_M, or that name; "" for any.
        names: of the files of the repository.

    Raises ModelNotFoundError for none of that kind, or more than one.
    """
    models = model_names(sorted(names))
    fits = re.compile(rf"(.*[-._/])?{re.escape(kind)}([-./].*)?", re.IGNORECASE)
    found = [n for n in models if kind in ("", n) or fits.fullmatch(n.removesuffix(".gguf"))]
    if len(found) == 1:
        return part_names(found[0])
    if not found and not kind:
        return []
    which = f"no GGUF model {kind}" if not found else f"{len(found)} GGUF models {kind}".rstrip()
    raise ModelNotFoundError(
        f"{name} has {which}",
        hint=f"Name one as in {name}:Q8_0, or {name}:FILE. There are: {listed(models, 24)}."
        if models
        else "Name a repository with GGUF files, or leave out what stands behind the colon.",
    )


@contextmanager
def headers_of(name: str, commit: str, sizes: Mapping[str, int]) -> Iterator[Path]:
    """The files of a GGUF model, as long as the real ones, with their headers alone.

    They take no more room on the disk, and are removed at the end. Raises CheckpointError for one
    that is damaged, and the client's errors.
    """
    with tempfile.TemporaryDirectory(prefix="ingot-outline-") as temporary:
        paths = {file: Path(temporary, name, Path(file).name) for file in sizes}
        first, *_ = paths.values()
        first.parent.mkdir(parents=True)
        for file, path in paths.items():
            _write_header(path, sizes[file], partial(_beginning, name, commit, file))
        yield first


def _write_header(path: Path, size: int, read: Callable[[int], bytes]) -> None:
    for count in HEADERS:
        with path.open("wb") as file:
            file.write(read(min(count, size)))
            file.truncate(size)
        try:
            return GgufFile(path).close()
        except CheckpointError:
            if count >= min(size, HEADERS[-1]):
                raise


def _beginning(name: str, commit: str, file: str, count: int) -> bytes:
    """So many bytes of a file."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    answer = get_session().get(
        hf_hub_url(name, file, revision=commit),
        headers={**build_hf_headers(), "Range": f"bytes=0-{max(count, 1) - 1}"},
        follow_redirects=True,
    )
    hf_raise_for_status(answer)
    return bytes(answer.content[:count])
