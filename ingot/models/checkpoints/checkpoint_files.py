"""Choice of the files of a model directory that hold its tensors."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ingot.errors import (
    CheckpointError,
    ConfigError,
    ModelDirError,
    Noting,
    OnFault,
    listed,
    raise_fault,
)
from ingot.models.checkpoints.mapped_file import MappedCheckpoint, TensorInfo
from ingot.models.checkpoints.safetensors_file import SafetensorsFile
from ingot.models.file_names import INDEX, MODULE_FOLDER, SINGLE
from ingot.models.model_dir import ModelDir
from ingot.models.other_formats import other_format
from ingot.models.single_files import room_of

DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def open_files(
    model_dir: ModelDir, on_fault: OnFault = raise_fault
) -> tuple[MappedCheckpoint, ...]:
    """Opens the single file or every shard of the index, and checks the index against them; or a
    file that is a whole model.

    `on_fault` gets each CheckpointError: no safetensors, a missing or damaged file, an index that
    does not match. If it returns, the files are those that could be opened.
    """
    path = model_dir.path
    if model_dir.is_single:
        with Noting(on_fault):
            return room_of(path).open_files(path)
        return ()
    single, index = path / SINGLE, path / INDEX
    if single.exists() and index.exists():
        on_fault(
            CheckpointError(
                f"{path} has both {SINGLE} and {INDEX}",
                hint="keep the one that belongs to config.json and move the other away",
            )
        )
    modules = _open_modules(model_dir, on_fault)
    if single.exists():
        return *_opened([single], on_fault), *modules
    with Noting(on_fault):
        if not index.exists():
            raise _no_weights(model_dir)
        return *_open_shards(path, _read_index(model_dir), on_fault), *modules
    return ()


def _open_modules(model_dir: ModelDir, on_fault: OnFault) -> list[SafetensorsFile]:
    """The files of modules behind the layers; names begin with that of the module's folder."""
    found = []
    for name in sorted(model_dir.names):
        folder, _, file = name.rpartition("/")
        if MODULE_FOLDER.fullmatch(folder) and file == SINGLE:
            with Noting(on_fault):
                found.append(SafetensorsFile(model_dir.path / name, f"{folder}/"))
    return found


def weight_names(model_dir: ModelDir) -> list[str]:
    """The names of the files that should hold the tensors; empty if nothing tells.

    Raises CheckpointError for an index that cannot be read.
    """
    if (model_dir.path / SINGLE).is_file():
        return [SINGLE]
    has_index = (model_dir.path / INDEX).is_file()
    return sorted(set(_read_index(model_dir).values())) if has_index else []


def shapes_of(model_dir: ModelDir) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors by their names; none without a readable checkpoint."""
    shapes: dict[str, tuple[int, ...]] = {}
    with suppress(ModelDirError):
        for file in open_files(model_dir):
            shapes |= {name: info.shape for name, info in file.tensors.items()}
            file.close()
    return shapes


def guess_dtype(model_dir: ModelDir) -> str:
    """The first float dtype in the checkpoint's headers, or "" without a readable checkpoint."""
    try:
        files = open_files(model_dir)
    except ModelDirError:
        return ""
    infos: list[TensorInfo] = []
    for file in files:
        infos += file.tensors.values()
        file.close()
    return next((DTYPE_NAMES[i.dtype] for i in infos if i.dtype in DTYPE_NAMES), "")


def _read_index(model_dir: ModelDir) -> dict[str, str]:
    """Tensor name -> shard file name."""
    hint = "fetch the index again, together with its shards"
    try:
        weight_map = model_dir.json(INDEX).get("weight_map")
    except ConfigError as error:
        raise CheckpointError(error.found, hint=hint) from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX} has no weight_map", hint=hint)
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and Path(shard).name == shard
        if not plain or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{INDEX} puts the tensor {name} into {shard!r}",
                hint="shards must be *.safetensors files beside the index",
            )
    return weight_map


def _open_shards(
    model_dir: Path, weight_map: dict[str, str], on_fault: OnFault
) -> tuple[SafetensorsFile, ...]:
    shards = sorted(set(weight_map.values()))
    absent = [shard for shard in shards if not (model_dir / shard).is_file()]
    if absent:
        on_fault(
            CheckpointError(
                f"{INDEX} lists shards that are absent: {listed(absent)}",
                hint=f"fetch the missing files into {model_dir}",
            )
        )
    unlisted = {path.name for path in model_dir.glob("model-*.safetensors")} - set(shards)
    if unlisted:
        on_fault(
            CheckpointError(
                f"{INDEX} does not list the shards {listed(sorted(unlisted))}",
                hint="fetch the index that belongs to these shards, or move them away",
            )
        )
    files = _opened([model_dir / shard for shard in shards if shard not in absent], on_fault)
    # Of a shard that cannot be read, nothing tells whether the index is right.
    read = {file.path.name for file in files}
    _check_index({name: s for name, s in weight_map.items() if s in read}, files, on_fault)
    return files


def _opened(paths: list[Path], on_fault: OnFault) -> tuple[SafetensorsFile, ...]:
    files = []
    for path in paths:
        with Noting(on_fault):
            files.append(SafetensorsFile(path))
    return tuple(files)


def _check_index(
    weight_map: dict[str, str], files: tuple[SafetensorsFile, ...], on_fault: OnFault
) -> None:
    found = {name: file.path.name for file in files for name in file.tensors}
    held = sum(len(file.tensors) for file in files)
    # A tensor that the index alone has may be a copy that was left out, such as that of a tied
    # head; one that a model needs is missed by its name.
    wrong = sorted(name for name in found if found[name] != weight_map.get(name))
    if not wrong and held == len(found):
        return
    try:
        on_fault(
            CheckpointError(
                f"{INDEX} and its shards disagree about {listed(wrong) or 'a repeated tensor'}",
                hint="fetch the index and its shards again, from one revision",
            )
        )
    except CheckpointError:
        for file in files:
            file.close()
        raise


def _no_weights(model_dir: ModelDir) -> CheckpointError:
    others = sorted(name for name in model_dir.names if name.endswith(".safetensors"))
    return other_format(str(model_dir.path), model_dir.names) or CheckpointError(
        f"{model_dir.path} has neither {SINGLE} nor {INDEX}"
        + (f", only {listed(others)}" if others else ""),
        hint=f"fetch the weights, or name the file {SINGLE} if it is the whole checkpoint",
    )
