"""Every family at odd sizes: all passes match as often as its blocks say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.compiler.export import export
from ingot.errors import PassError
from ingot.models import registry
from ingot.models.counts import module_counts
from ingot.passes.pipeline import pipeline
from ingot.passes.runner import run
from tests.support.core import core
from tests.support.odd_sizes import ODD, odd_values
from tests.support.tiny_models import EVERY, FAMILIES

torch.set_num_threads(1)
BFLOAT16 = pipeline(dtype="bfloat16")
FURTHER = ("cohere2", "gemma3", "qwen2moe", "deepseek_v3")


def check(
    values: dict[str, Any], *, more: dict[str, int] | None = None, verify: bool = False
) -> None:
    """Compiles as far as the passes go; `more` is added to what the blocks say."""
    config = registry.parse_config(values)
    module = registry.build(config, max_model_len=64)
    counts = module_counts(module)
    for name, count in (more or {}).items():
        counts[name] += count
    run(export(module, config), BFLOAT16, counts, verify=verify)


@pytest.mark.cases(thorough=2)
@pytest.mark.parametrize("usual", core(further=FURTHER, slow=FAMILIES))
@settings(max_examples=2, deadline=None, derandomize=True)
@given(odd=ODD)
def test_passes_match_as_often_as_blocks_say(usual: str, odd: dict[str, Any]) -> None:
    check(odd_values(usual, odd), verify=True)


@pytest.mark.slow
@pytest.mark.parametrize("usual", FAMILIES)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(data=st.data(), odd=ODD)
def test_every_option_of_a_family(usual: str, data: st.DataObject, odd: dict[str, Any]) -> None:
    check(odd_values(data.draw(st.sampled_from(FAMILIES[usual])), odd))


@pytest.mark.cases(core=1)
@pytest.mark.parametrize(("name", "block"), [("cohere", "layer_norm"), ("mixtral", "experts")])
def test_a_block_that_says_too_much_is_found(name: str, block: str) -> None:
    made = EVERY[name]()
    values = {**made.to_dict(), "architectures": [f"{type(made).__name__[:-6]}ForCausalLM"]}
    check(values)
    with pytest.raises(PassError, match=block):
        check(values, more={block: 1})
