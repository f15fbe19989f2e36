"""Layers that are exported once and repeated: the graph is that of the whole module's export."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ingot.compiler import export as exporting
from ingot.compiler.export import capture, export, flatten, repeated
from ingot.errors import ExportError
from ingot.models import registry
from ingot.models.config import ModelConfig
from tests.compiler import loops
from tests.passes.support import Facts
from tests.support.core import core
from tests.support.tiny_models import CASES

FIRST = ["llama"]
FURTHER = [
    "gemma2",
    "gpt2",
    "qwen2",
    "qwen3",
    "mistral",
    "qwen2_layer_types",
    "qwen3_window",
    "llama_longrope",
    "gemma2_layer_types",
]


BODIES = [*loops.REPEATED, *loops.NOT_REPEATED]


def config_of(name: str) -> ModelConfig:
    config = CASES[name]()
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
    return registry.parse_config({**config.to_dict(), "architectures": [architecture]})


def model(config: ModelConfig) -> nn.Module:
    return registry.build(config, max_model_len=64)


def told(gm: GraphModule) -> list[Any]:
    """All that there is to know of a graph's nodes, in order, and of its weights."""
    nodes = [
        (n.op, n.name, str(n.target), str(n.args), str(n.kwargs), *map(shown, n.meta.items()))
        for n in gm.graph.nodes
    ]
    tensors = [*gm.named_parameters(), *gm.named_buffers()]
    return nodes + [(name, id(tensor)) for name, tensor in tensors]


def shown(entry: tuple[str, Any]) -> str:
    name, value = entry
    if isinstance(value, Tensor):
        value = (value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
    return f"{name}: {list(value.items()) if isinstance(value, dict) else value}"


def whole(module: nn.Module) -> GraphModule:
    return flatten(capture(module.eval()))


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("name", core(*FIRST, further=FURTHER))
def test_every_family_is_repeated_node_for_node(name):
    config = config_of(name)
    module = model(replace(config, layers=config.layers * 2))
    gm = repeated(module.eval())
    assert gm is not None and told(gm) == told(whole(module))


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("kinds", core(further=["abcacb", "abbb", "abab", "aabba"]))
def test_kinds_may_follow_on_each_other_in_any_order(kinds):
    config = config_of("mistral")
    first = config.layers[0]
    windows = [replace(first.mixer, window=ord(kind)) for kind in kinds]
    layers = tuple(replace(first, mixer=mixer) for mixer in windows)
    module = model(replace(config, layers=layers))
    gm = repeated(module.eval())
    assert gm is not None and told(gm) == told(whole(module))


@pytest.mark.thorough
def test_what_is_traced_does_not_grow_with_depth(monkeypatch):
    sizes = []

    def watched(module):
        program = capture(module)
        sizes.append(len(program.graph.nodes))
        return program

    monkeypatch.setattr(exporting, "capture", watched)
    config = config_of("qwen3")
    for depth in (4, 40):
        gm = export(model(replace(config, layers=config.layers[:1] * depth)), config)
        found = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.silu.default)
        assert len(found) == depth
    assert len(sizes) == 2 and sizes[0] == sizes[1]


@pytest.mark.cases(core=2, thorough=5)
@pytest.mark.parametrize("body", core(*BODIES[::4], further=BODIES))
def test_layers_are_repeated_where_a_model_does_nothing_else(body):
    module = loops.model(body)
    assert (repeated(module.eval()) is None) == (body in loops.NOT_REPEATED)
    assert told(export(module, Facts())) == told(whole(module))


@pytest.mark.parametrize("body", loops.NOT_EXPORTED)
def test_what_only_the_last_layer_does_wrong_is_found(body):
    with pytest.raises(ExportError):
        export(loops.model(body), Facts())


def share_a_layer(module):
    module.layers[3] = module.layers[1]


def share_a_weight(module):
    module.layers[3].w = module.layers[1].w


def double(layer, inputs, result):
    return result * 2.0


def hook_a_layer(module):
    module.layers[3].register_forward_hook(double)


@pytest.mark.cases(core=1)
@pytest.mark.parametrize(
    ("change", "same"), [(share_a_layer, False), (share_a_weight, False), (hook_a_layer, True)]
)
def test_a_layer_with_something_of_its_own(change, same):
    module = loops.model(loops.plain)
    change(module)
    assert (repeated(module.eval()) is not None) == same
    assert told(export(module, Facts())) == told(whole(module))


def test_layers_are_all_there_after_an_export():
    module = loops.model(loops.plain)
    before = list(module.named_modules())
    export(module, Facts())
    assert list(module.named_modules()) == before
