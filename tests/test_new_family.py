"""The example of a family from outside agrees with `transformers`, and refuses what it must."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from examples.tiny_model import CONFIG, write_model
from ingot.errors import ConfigError
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint, materialize
from ingot.models.family import Family
from ingot.models.model_dir import ModelDir
from tests.support.page_session import HELIUM

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "new_family"
LONGEST = 100


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    """The object that the package's entry point names, registered until the test ends."""
    monkeypatch.setattr(registry, "_registered", dict(registry.families()))
    monkeypatch.setattr(registry, "_by_hand", {})
    monkeypatch.syspath_prepend(EXAMPLE)
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["entry-points"][registry.ENTRY_POINT_GROUP].items()
    module, _, attribute = target.partition(":")
    found = getattr(__import__(module), attribute)
    assert found.name == name
    registry.register(found)
    yield found
    sys.modules.pop(module)


def save(folder: Path, **changed: object) -> Path:
    write_model(folder, {**HELIUM, **changed})
    return folder


@pytest.mark.parametrize(
    "changed",
    [{}, {"tie_word_embeddings": True}, {"num_key_value_heads": 1}],
    ids=["usual", "tied", "one key head"],
)
def test_logits_equal_those_of_transformers(
    family: Family, changed: dict[str, object], tmp_path: Path
) -> None:
    model_dir = save(tmp_path, **changed)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assert type(theirs).__name__ == "HeliumForCausalLM"
    config = registry.load_config(ModelDir.open(model_dir))
    module = registry.build(config, max_model_len=LONGEST)
    with Checkpoint.open(ModelDir.open(model_dir), config, module) as checkpoint:
        materialize(module, checkpoint)
    ids = torch.randint(256, (1, LONGEST), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(ids).logits
        got = module(ids, torch.arange(LONGEST)[None])
    assert expected.std() > 0.1, "degenerate logits prove nothing"
    assert float((got - expected).norm() / expected.norm()) <= 1e-5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_bias", "yes"),
        ("hidden_act", "xielu"),
        ("partial_rotary_factor", 0.5),
        ("attention_multiplier", 0.5),
    ],
)
def test_what_it_does_not_know_is_refused(
    family: Family, key: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=key):
        registry.load_config(ModelDir.open(save(tmp_path, **{key: value})))


def test_helium_is_unknown_without_it() -> None:
    assert "HeliumForCausalLM" not in registry.supported_architectures()


def test_the_tiny_model_is_a_llama_that_transformers_reads(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == CONFIG
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    state = theirs.state_dict()
    assert state.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(state[name], torch.from_numpy(tensor))
