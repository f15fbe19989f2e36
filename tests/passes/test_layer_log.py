"""What is noted of a layer is what a dump of the same run has of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.artifact.layer_graphs import LayerGraph
from ingot.compiler.export import export
from ingot.models import registry
from ingot.models.counts import module_counts
from ingot.models.model_dir import ModelDir
from ingot.passes.layer_log import LayerLog
from ingot.passes.pipeline import pipeline
from ingot.passes.runner import run
from tests.support.tiny_models import save_random

LAYER = "model.layers.1"


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[LayerGraph, Path]:
    """The log of a layer of a small model, and the dump of the same passes."""
    folder = tmp_path_factory.mktemp("layer")
    config = registry.load_config(ModelDir.open(save_random("llama", folder / "model")))
    module = registry.build(config, max_model_len=32)
    log = LayerLog({LAYER: (1,)})
    passes = pipeline(dtype="bfloat16")
    run(export(module, config), passes, module_counts(module), dump_dir=folder / "dump", log=log)
    (layer,) = log.graphs.layers
    return layer, folder / "dump"


def of_layer(file: Path) -> list[str]:
    """The lines of a dump that come from the layer, without those of layers 10 and so on."""
    lines = (line for line in file.read_text().splitlines() if "  # " in line)
    return [x for x in lines if f"{x.rpartition('  # ')[2]}.".startswith(f"{LAYER}.")]


def test_every_stage_has_the_lines_of_the_dump(dumped: tuple[LayerGraph, Path]) -> None:
    layer, folder = dumped
    files = {path.stem.partition("_")[2]: path for path in sorted(folder.glob("[0-9]*.txt"))}
    noted = dict(layer.graphs())
    assert noted["export"] == of_layer(files["export"])
    assert len(noted) > 8
    before: list[str] = []
    for name, file in files.items():  # only what changed the layer is noted
        lines = of_layer(file)
        assert (name in noted) == (lines != before)
        assert noted.get(name, before) == lines
        before = lines


def test_a_layer_that_is_not_there_has_no_lines(dumped: tuple[LayerGraph, Path]) -> None:
    assert of_layer(dumped[1] / "00_export.txt")
    assert LayerLog({}).graphs.layers == ()
