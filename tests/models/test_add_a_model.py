"""The page docs/add_a_model.md: its example is run, registered from outside in both ways."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingot.errors import CompileError, UnsupportedModelError, UsageError
from ingot.models import registry
from ingot.models.families import llama
from tests.support.pages import blocks, files_on_path, run


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's files in a folder on the path, and a registry that forgets them after."""
    monkeypatch.setattr(registry, "_registered", dict(registry.families()))
    monkeypatch.setattr(registry, "_by_hand", {})
    monkeypatch.setattr(registry, "_plugins_loaded", False)
    with files_on_path("add_a_model.md", tmp_path) as files:
        assert files == ["starcoder.py", "use.py", "check.py"]
        yield tmp_path


def install(folder: Path, target: str) -> None:
    """What pip leaves behind for a package with an entry point."""
    info = folder / "starcoder_for_ingot-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: starcoder-for-ingot\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(f"[ingot.families]\nstarcoder = {target}\n")


def test_page_runs_and_agrees_with_transformers(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(example / "check.py")
    assert "relative error" in capsys.readouterr().out


def test_family_file_keeps_to_its_budget(example: Path) -> None:
    assert len((example / "starcoder.py").read_text().splitlines()) <= 120


def test_starcoder_is_unknown_without_the_example() -> None:
    with pytest.raises(UnsupportedModelError, match="GPTBigCodeForCausalLM"):
        registry.find_family({"architectures": ["GPTBigCodeForCausalLM"]})


def test_entry_point_of_an_installed_package(example: Path) -> None:
    ((_, text),) = blocks("add_a_model.md", "toml")
    install(example, tomllib.loads(text)["project"]["entry-points"]["ingot.families"]["starcoder"])
    assert registry.find_family({"architectures": ["GPTBigCodeForCausalLM"]}).name == "starcoder"
    assert "starcoder" in registry.families()


@pytest.mark.parametrize("target", ["no_starcoder:FAMILY", "starcoder:NOTHING", "starcoder:parse"])
def test_broken_package_is_not_called_unsupported(example: Path, target: str) -> None:
    install(example, target)
    with pytest.raises(CompileError, match="starcoder") as caught:
        registry.find_family({"architectures": ["GPTBigCodeForCausalLM"]})
    assert not isinstance(caught.value, UnsupportedModelError)
    assert registry.find_family({"architectures": ["LlamaForCausalLM"]}).name == "llama"


def test_clash_with_a_known_family_is_refused(example: Path) -> None:
    family = run(example / "starcoder.py").FAMILY
    registry.register(family)
    registry.register(family)
    clash = type(family)(
        name="other", architectures=("LlamaForCausalLM",), parse=llama.parse, build=family.build
    )
    with pytest.raises(UsageError, match=r"other.*llama"):
        registry.register(clash)
