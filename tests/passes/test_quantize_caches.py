"""quantize_caches: writers and readers share the scales, and nothing else changes."""

from __future__ import annotations

import torch

from ingot.passes.graph import arguments, op_calls, value
from ingot.passes.inputs import STEP_INPUTS
from ingot.passes.numerics import Checker, relative_error
from ingot.passes.quantize_caches import quantize_caches
from tests.passes.cases import two_layers
from tests.passes.support import TARGET, before, lab

torch.set_num_threads(1)


def test_every_cache_has_scales_that_its_writer_and_its_reader_know():
    gm = before(lab(two_layers), "quantize_caches")
    assert quantize_caches(gm, target=TARGET) == 2
    writes, reads = op_calls(gm, "kv_write"), op_calls(gm, "paged_attention")
    for layer, pair in enumerate(zip(writes, reads, strict=True)):
        for node in pair:
            given = arguments(node)
            for kind in "kv":
                cache, scales = given[f"{kind}_cache"], given[f"{kind}_scales"]
                assert (cache.name, scales.name) == (
                    f"{kind}_cache_{layer}",
                    f"{kind}_scales_{layer}",
                )
                assert value(cache).dtype == torch.int8
                assert value(scales).dtype == torch.float32
                assert value(scales).shape == value(cache).shape[:3]
    names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    assert tuple(names[: len(STEP_INPUTS)]) == STEP_INPUTS and len(set(names)) == len(names)


def test_logits_move_by_the_rounding_alone():
    gm = before(lab(two_layers), "quantize_caches")
    checker = Checker(gm)
    exact = checker.run()
    quantize_caches(gm, target=TARGET)
    error = relative_error(checker.run(), exact)
    assert 0 < error < 2e-2
