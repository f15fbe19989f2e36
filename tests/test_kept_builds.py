"""What outlives a run of tests is what an unpatched ingot has made."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.cache.builds import Builds
from ingot.compiler import kept_front
from ingot.targets.cpu import toolchain
from tests.import_cycles import arrows_of, reach
from tests.support import kept_builds
from tests.support.kept_builds import BUILT, FRONTS, spoilt_by
from tests.support.made_once import cache_folder

ROOT = Path(__file__).resolve().parent.parent
KEY = "0" * 64
SUFFIXES = (".o", ".cubin", ".front")


@pytest.fixture
def outliving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that outlives a run, as a test's own cache shows it."""
    monkeypatch.setenv(kept_builds.PLACE, str(tmp_path / "kept"))
    monkeypatch.setenv("INGOT_CACHE", str(cache_folder(tmp_path / "cache")))
    return Builds.opened().folder


def stay(folder: Path) -> set[str]:
    """The suffixes of what can be kept there and taken."""
    for suffix in SUFFIXES:
        Builds(folder).keep(KEY, b"data", suffix)
    return {suffix for suffix in SUFFIXES if Builds(folder).take(KEY, suffix) == b"data"}


@pytest.mark.parametrize(
    ("target", "name", "spoilt"),
    [
        (kept_front, "graph_of", FRONTS),
        (kept_front, "SUFFIX", FRONTS),
        ("ingot.passes.pipeline.PIPELINES", None, FRONTS),
        (toolchain, "compile_unit", BUILT),
        ("ingot.targets.compilers.run_compiler", None, BUILT),
        # Keys have the content of the headers.
        (toolchain, "KERNELS", frozenset()),
        ("ingot.runtime.params.SamplingParams", None, frozenset()),
    ],
)
def test_what_a_patch_may_spoil_does_not_stay(
    target: object, name: str | None, spoilt: frozenset[str], outliving: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        named = (target, name) if name else (target,)
        patch.setattr(*named, lambda: None, raising=False)  # type: ignore[arg-type]
        assert stay(outliving) == set(SUFFIXES) - spoilt
    assert stay(outliving) == set(SUFFIXES)  # the control: once it is undone, all does


def test_a_patch_of_a_class_counts_as_one_of_its_module(outliving: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_front.OpenModel, "resolved", None, raising=False)
        assert stay(outliving) == set(BUILT)


def test_what_was_kept_is_not_taken_where_something_is_patched(outliving: Path) -> None:
    assert stay(outliving) == set(SUFFIXES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_front, "LOADED", "")
        assert Builds(outliving).take(KEY, ".front") is None
        assert Builds(outliving).take(KEY, ".o") == b"data"


def test_a_cache_of_a_test_is_its_own_business(outliving: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_front, "LOADED", "")
        assert stay(tmp_path / "own") == set(SUFFIXES)


@pytest.mark.parametrize(
    ("name", "spoilt"),
    [
        ("ingot.targets.cuda.toolchain.build", BUILT),
        ("ingot.targets.cpu.toolchain.build", frozenset()),  # it links
        ("ingot.targets.cpu.toolchain.compile_unit", BUILT),
        ("ingot.compiler.compile.add_weights", frozenset()),  # fronts are made before
        ("ingot.compiler.lower_model.lower", FRONTS),
        ("ingot.targets.cpu.groups.RULES", FRONTS),
        ("ingot.errors.shown", frozenset()),
        ("torch.export.export", frozenset()),
        ("ingot", frozenset()),
    ],
)
def test_which_names_may_spoil_what(name: str, spoilt: frozenset[str]) -> None:
    assert spoilt_by(name) == spoilt
    assert set(kept_front.ROOMS) == set(kept_builds.MAKE_FRONTS)


def test_no_front_is_made_by_what_only_uses_it() -> None:
    """Else a patch of it could spoil one that is kept."""
    needed = reach(arrows_of(ROOT / "ingot"), "compiler.kept_front")
    assert "compiler.lower_model" in needed and "compiler.compile" not in needed


def test_all_tests_share_the_folder() -> None:
    assert Builds.opened().folder.resolve() == kept_builds.kernels_folder()
