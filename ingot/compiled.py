"""Model directories, compiled once: where an artifact is asked for, a model directory will do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.artifact.gpu import find_gpus
from ingot.artifact.tree import is_artifact
from ingot.cache.artifacts import Artifacts, discard, entry_name
from ingot.cache.store import key_of
from ingot.errors import ResourceError
from ingot.files import stamp
from ingot.models.file_names import CONFIG, TEMPLATES
from ingot.models.model_dir import ModelDir
from ingot.models.other_formats import refuse_other_format
from ingot.models.single_files import is_single, room_of
from ingot.say import say
from ingot.settings import settings
from ingot.version import __version__

if TYPE_CHECKING:
    from ingot.compiler.options import CompileOptions

SOURCES = Path(__file__).parent
COMPILED = ("py", "h", "cpp")  # the endings of what decides about an artifact there


def resolve(path: str | Path, options: CompileOptions | None = None) -> Path:
    """The artifact at `path`, or the one that the model directory there is compiled to.

    The first use compiles it into the cache and says so on stderr; later uses find it there.
    Anything else than a model directory is returned as it is, for the reader to judge.
    `options` are for the compile and have no effect on an artifact.

    Raises CheckpointError for a model in a format of another program, and what a compile raises.
    """
    source = Path(path)
    if is_artifact(source):
        return source
    if not is_single(source) and not os.path.isfile(source / CONFIG):
        refuse_other_format(source)
        return source
    from ingot.compiler.options import CompileOptions

    options = options or CompileOptions()
    model_dir = ModelDir.open(source)
    name = entry_name(model_dir.name, cache_key(model_dir, options))
    cache = Artifacts(settings().cache_dir)
    if cache.take(name) is None:
        with cache.alone(name, source):
            if cache.take(name, tell=True) is None:
                _compile(source, cache.folder / name, options)
    return cache.folder / name


def cache_key(model_dir: ModelDir, options: CompileOptions) -> str:
    """Changes with everything that an artifact depends on.

    The config by its content, other files of the model by size and time of change: reading many
    GB at each start would cost more than the cache saves.
    """
    from ingot.compiler.choose_targets import resolve_target
    from ingot.compiler.surroundings import surroundings

    parts = {
        "version": __version__,
        "host": resolve_target("cpu:native").name,
        "gpus": list(map(str, find_gpus() if "cuda:native" in options.targets else ())),
        "options": {name: str(value) for name, value in asdict(options).items()},
        **_model_parts(model_dir),
        "texts": [
            stamp(path)
            for path in (options.calibrate, options.quality_text)
            if path and path.is_file()
        ],
        **surroundings(),
        # The compiler's own sources, for those who work on them.
        "compiler": [found for kind in COMPILED for found in _stamps(SOURCES, f"**/*.{kind}")],
    }
    return key_of(parts)


def _model_parts(model_dir: ModelDir) -> dict[str, Any]:
    path = model_dir.path
    if model_dir.is_single:
        files = room_of(path).read_files(path)
        return {"files": [(file.name, *stamp(file)) for file in files]}
    return {
        "config": model_dir.json_bytes(CONFIG).decode(errors="replace"),
        "files": [*_stamps(path, "*"), *_stamps(path, f"{TEMPLATES}/*")],
    }


def _stamps(folder: Path, pattern: str) -> Iterator[tuple[str, int, int]]:
    for path in sorted(folder.glob(pattern)):
        if path.is_file():
            yield str(path.relative_to(folder)), *stamp(path)


def _compile(source: Path, artifact: Path, options: CompileOptions) -> None:
    from ingot.compiling import compile_checked  # with all of the runtime

    say(f"compiling {source} into {artifact} (once)")
    if artifact.exists():
        _discard(artifact)
    report = compile_checked(source, artifact, options)
    say(f"compiled in {report.seconds:.1f} s")
    limit = settings().cache_limit
    if limit is not None:
        for entry in Artifacts(artifact.parent).shrink(limit, keep=artifact):
            say(f"removed {entry.path.name}: the cache is limited to {limit / 1e9:g} GB")


def _discard(artifact: Path) -> None:
    """Removes what is unusable; nothing else lives in the cache. Raises ResourceError."""
    try:
        discard(artifact)
    except OSError as error:  # in a cache that users share
        raise ResourceError(
            f"{artifact} is damaged and cannot be removed: {error.strerror}",
            hint="Have its owner remove it, or set INGOT_CACHE to a folder of your own.",
        ) from error
