"""The page docs/add_a_model.md: its example is run, registered from outside in both ways."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from ingot.errors import CompileError, UnsupportedModelError, UsageError
from ingot.models import registry
from ingot.models.checkpoint import Checkpoint, materialize
from ingot.models.families import llama
from tests.support.pages import blocks, files_on_path, run
from tests.support.tiny_models import randomise


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's files in a folder on the path, and a registry that forgets them after."""
    monkeypatch.setattr(registry, "_registered", dict(registry.families()))
    monkeypatch.setattr(registry, "_by_hand", {})
    monkeypatch.setattr(registry, "_plugins_loaded", False)
    with files_on_path("add_a_model.md", tmp_path) as files:
        assert files == ["phi3.py", "use.py", "check.py"]
        yield tmp_path


def install(folder: Path, target: str) -> None:
    """What pip leaves behind for a package with an entry point."""
    info = folder / "phi3_for_ingot-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: phi3-for-ingot\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ingot.families]\nphi3 = {target}\n")


def test_page_runs_and_agrees_with_transformers(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(example / "check.py")
    assert "relative error" in capsys.readouterr().out


def test_family_file_keeps_to_its_budget(example: Path) -> None:
    assert len((example / "phi3.py").read_text().splitlines()) <= 120


def test_phi3_is_unknown_without_the_example() -> None:
    with pytest.raises(UnsupportedModelError, match="Phi3ForCausalLM"):
        registry.find_family({"architectures": ["Phi3ForCausalLM"]})


def test_entry_point_of_an_installed_package(example: Path) -> None:
    ((_, text),) = blocks("add_a_model.md", "toml")
    install(example, tomllib.loads(text)["project"]["entry-points"]["ingot.families"]["phi3"])
    assert registry.find_family({"architectures": ["Phi3ForCausalLM"]}).name == "phi3"
    assert "phi3" in registry.families()


@pytest.mark.parametrize("target", ["phi3_is_not_there:FAMILY", "phi3:NOTHING", "phi3:parse"])
def test_broken_package_is_not_called_unsupported(example: Path, target: str) -> None:
    install(example, target)
    with pytest.raises(CompileError, match="phi3") as caught:
        registry.find_family({"architectures": ["Phi3ForCausalLM"]})
    assert not isinstance(caught.value, UnsupportedModelError)
    assert registry.find_family({"architectures": ["LlamaForCausalLM"]}).name == "llama"


def test_clash_with_a_known_family_is_refused(example: Path) -> None:
    family = run(example / "phi3.py").FAMILY
    registry.register(family)
    registry.register(family)
    clash = type(family)(
        name="other", architectures=("LlamaForCausalLM",), parse=llama.parse, build=family.build
    )
    with pytest.raises(UsageError, match=r"other.*llama"):
        registry.register(clash)


@pytest.mark.parametrize("length", [20, 60, 61, 200])
def test_phi3_with_partial_longrope(example: Path, tmp_path: Path, length: int) -> None:
    run(example / "use.py")
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0 + 0.1 * i for i in range(6)],
        "long_factor": [2.0 + i for i in range(6)],
    }
    torch.manual_seed(1)
    config = transformers.Phi3Config(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=1, max_position_embeddings=240,
        original_max_position_embeddings=60, rope_parameters=rope, attn_implementation="eager",
        bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    theirs = transformers.Phi3ForCausalLM(config).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path / "model")
    parsed = registry.load_config(tmp_path / "model")
    assert parsed.ropes[0].rotary_dim == 12 and parsed.largest_head == 16
    module = registry.build(parsed, max_model_len=length)
    with Checkpoint.open(tmp_path / "model", parsed, module) as checkpoint:
        materialize(module, checkpoint)
    ids, positions = torch.randint(320, (1, length)), torch.arange(length)[None]
    with torch.no_grad():
        expected, got = theirs(ids).logits, module(ids, positions)
    assert (got - expected).norm() / expected.norm() < 1e-5
