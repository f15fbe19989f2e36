"""GGUF files of repositories on the hub: which one a name means, and what its header says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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


def write_outline(path: Path, size: int, read: Callable[[int], bytes]) -> None:
    """Writes a GGUF file as long as the real one, with its header alone.

    Args:
        size: of the real one; read: gives so many bytes of its beginning.

    Raises CheckpointError for one that is damaged.
    """
    for count in HEADERS:
        with path.open("wb") as file:
            file.write(read(min(count, size)))
            file.truncate(size)
        try:
            return GgufFile(path).close()
        except CheckpointError:
            if count >= min(size, HEADERS[-1]):
                raise
