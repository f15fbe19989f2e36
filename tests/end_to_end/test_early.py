"""What a compile needs and lacks is told before its long stages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from ingot.cli.main import main
from ingot.compiler import compile as compiler
from tests.support.core import core
from tests.support.tiny_models import save_random

Usage = namedtuple("Usage", "total used free")
OPTIONS = ("--target", "cpu:portable", "--max-model-len", "64")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random("llama", tmp_path_factory.mktemp("model") / "model", tokenizer=True)


@pytest.fixture
def model(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "model")


def never(*_: object) -> None:
    raise AssertionError("it came too far")


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo no such header >&2; exit 1", "exit code 1\nno such header"),
        ("kill -9 $$", "exit code -9"),
    ],
)
def test_a_broken_compiler_is_found_before_the_export(
    script: str,
    found: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = tmp_path / "c++"
    broken.write_text(f"#!/bin/sh\n{script}\n")
    broken.chmod(0o755)
    monkeypatch.setenv("INGOT_CXX", str(broken))
    monkeypatch.setattr(compiler, "front_of", never)
    assert main(["compile", str(model), "-o", str(tmp_path / "out" / "a.ingot"), *OPTIONS]) == 2
    assert found in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    ("options", "times"),
    core(
        ((), 1),
        further=[
            (("--quantize", "int8"), 2),
            (("--target", "cpu:portable,cpu:x86-64-v3"), 1),  # they share the weights
        ],
    ),
    ids=["plain", "int8", "two targets"],
)
def test_a_disk_without_room_for_the_weights_is_found_before_they_are_packed(
    options: tuple[str, ...],
    times: int,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "a.ingot"
    argv = ["compile", str(model), "-o", str(out), *OPTIONS, *options]
    assert main(argv) == 0
    stored = sum(file.stat().st_size for file in (out / "weights").iterdir())
    shutil.rmtree(out)
    capsys.readouterr()

    def free(nbytes: float) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, int(nbytes)))

    free(times * stored * 1.1)
    assert main(argv) == 0
    shutil.rmtree(out)
    free(times * stored * 0.8)
    monkeypatch.setattr(compiler, "write_parts", never)
    assert main(argv) == 5
    assert "MB free, and the weights need" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def in_a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "a.ingot"


# The output, what is done to the model, and what is said.
EARLY: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object], str]] = {
    "output in a file": (in_a_file, lambda model: None, "cannot be written: Not a directory"),
    "output on a system's disk": (
        lambda folder: Path("/proc/ingot/a.ingot"),
        lambda model: None,
        "'/proc/ingot/a.ingot' cannot be written",
    ),
    "no tokenizer": (
        lambda folder: folder / "a.ingot",
        lambda model: (model / "tokenizer.json").unlink(),
        "has no tokenizer.json",
    ),
    "no config": (
        lambda folder: folder / "a.ingot",
        lambda model: (model / "config.json").unlink(),
        "has no config.json",
    ),
    "no torch": (lambda folder: folder / "a.ingot", lambda model: None, "torch is not installed"),
}
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from ingot.cli.main import main
sys.exit(main())
"""


def without_torch(*line: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *line]
    return subprocess.run(command, capture_output=True, text=True)


# What is said of a line before any model is opened, which would need torch.
LINES: dict[str, tuple[tuple[str, ...], str]] = {
    "no goldens": (("verify", "MODEL", "--golden", "none.json"), "none.json cannot be read"),
    "no prompts": (("compare", "MODEL", "MODEL", "--prompts", "none"), "none cannot be read"),
    "vocabularies": (("compare", "MODEL", "OTHER"), "of 320 tokens, and"),
    "of transformers": (("compare", "MODEL", "hf:OTHER"), "of 320 tokens, and"),
    "nothing wrong": (("compare", "MODEL", "MODEL"), "torch is not installed"),
}


@pytest.mark.cases(core=2)
@pytest.mark.parametrize("name", LINES)
def test_what_is_wrong_with_a_line_is_told_before_a_model_is_opened(
    name: str, model: Path, shakespeare_dir: Path
) -> None:
    line, found = LINES[name]
    places = {"MODEL": str(model), "OTHER": str(shakespeare_dir)}
    done = without_torch(*(re.sub("MODEL|OTHER", lambda m: places[m[0]], word) for word in line))
    assert (done.returncode, done.stdout) == (2, "")
    assert found in done.stderr


@pytest.mark.cases(core=2)
@pytest.mark.parametrize("name", EARLY)
def test_what_is_missing_is_told_before_torch_is_imported(
    name: str, model: Path, tmp_path: Path
) -> None:
    make, damage, found = EARLY[name]
    out = make(tmp_path)
    damage(model)
    before = sorted(tmp_path.rglob("*"))
    done = without_torch("compile", str(model), "-o", str(out))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert found in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_torch_that_is_missing_is_a_typed_error(model: Path, tmp_path: Path) -> None:
    code = (
        'import sys; sys.modules["torch"] = None; import ingot, ingot.errors\n'
        "try: ingot.compile(*sys.argv[1:])\n"
        "except ingot.errors.CompileError as error: print(error.hint)"
    )
    command = [sys.executable, "-c", code, str(model), str(tmp_path / "a.ingot")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "pip install 'ingot-lm[compile]'" in done.stdout, done.stderr
