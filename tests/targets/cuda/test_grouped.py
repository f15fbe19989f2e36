"""What two layers of each family become on a GPU: a rule that no longer applies shows here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.plans import plan_in
from ingot.artifact.launches import decode_launches
from ingot.cli.inspect.gpu import sizes_of_token
from ingot.targets.cuda.kind import KIND
from ingot.targets.cuda.toolchain import LAUNCHES
from tests.support.core import core
from tests.support.dense_models import USUAL
from tests.support.tiny_models import save_random
from tests.targets.cuda.tiny import TARGETS

SM_90 = TARGETS[1]
AROUND = {"embedding": 1, "rope_table": 1, "select_rows": 2, "linear": 1, "rms_norm": 1}
# Five groups, of two launches each.
LAYER = {
    "linear_rope_kv_write": 2, "paged_attention": 2, "linear_add_rms_norm": 4, "gated_linear": 2,
}  # fmt: skip
# A norm stands between a branch and the sum.
NORMED = {
    "linear_rope_kv_write": 2, "paged_attention": 2, "linear": 5, "add_rms_norm": 4,
    "gated_linear": 2, "rms_norm": 5,
}  # fmt: skip
# A norm over all queries, and no norm before a branch: what a product reads is a cast.
OLMO = {
    "cast": 4, "linear": 7, "rms_norm": 8, "rope_kv_write": 2, "paged_attention": 2, "add": 3,
    "gated_linear": 2, "add_rms_norm": 1,
}  # fmt: skip
# Layer norms, and no gate.
PLAIN = {
    "layer_norm": 5, "linear_rope_kv_write": 2, "paged_attention": 2, "linear_add": 4, "linear": 3,
    "activation": 2,
}  # fmt: skip
# Both branches read one norm.
PARALLEL = {
    "layer_norm": 3, "linear_rope_kv_write": 2, "paged_attention": 2, "linear_add": 4,
    "gated_linear": 2, "select_rows": 3, "mul": 1,
}  # fmt: skip
# In one of the layers nothing is turned.
UNTURNED = {"linear_rope_kv_write": 1, "linear": 2, "cast": 1, "kv_write": 1}
Groups = Mapping[str, int]
# Of two layers: launches in a step of one token, and kernels.
EXPECTED: Mapping[str, tuple[int, Groups]] = {
    **dict.fromkeys(
        ("llama", "qwen2", "qwen3", "mistral", "phi3", "glm", "ministral", "seed_oss", "ernie4_5"),
        (25, LAYER),
    ),
    "gemma": (26, {**LAYER, "mul": 1}),
    "granite": (27, {**LAYER, "mul": 2}),
    "smollm3": (26, {**LAYER, **UNTURNED}),
    "gemma2": (30, {**NORMED, "mul": 1, "linear": 4, "linear_soft_cap": 1}),
    "gemma3": (31, {**NORMED, "mul": 1, "rope_table": 2}),
    "glm4": (29, NORMED),
    "olmo2": (36, OLMO),
    "olmo3": (36, OLMO),
    "exaone4": (34, {
        **OLMO, "linear": 6, "rms_norm": 6, "rope_kv_write": 0, "linear_rope_kv_write": 1,
        "kv_write": 1,
    }),
    "hunyuan": (33, {  # heads are turned before they are normed
        **LAYER, "linear_rope_kv_write": 0, "linear": 3, "rope": 4, "rms_norm": 5, "kv_write": 2,
    }),
    "mistral3": (30, {  # queries are scaled by their position after they are turned
        **LAYER, "rope_table": 2, "linear_rope_kv_write": 0, "linear": 3, "rope": 4, "kv_write": 2,
    }),
    "cohere": (25, {**PARALLEL, "rms_norm": 0}),
    "cohere2": (26, {**PARALLEL, "rms_norm": 0, **UNTURNED}),
    "starcoder2": (27, {**PLAIN, "rms_norm": 0}),
    "gpt_neox": (27, {**PLAIN, "rms_norm": 0}),
    "gpt2": (30, {
        **PLAIN, "rms_norm": 0, "rope_table": 0, "linear_rope_kv_write": 0, "embedding": 2,
        "add": 1, "linear": 5, "cast": 2, "kv_write": 2,
    }),
}  # fmt: skip


@pytest.mark.cases(thorough=3)
@pytest.mark.parametrize("family", core("llama", further=EXPECTED))
def test_the_groups_and_launches_of_two_layers(tmp_path: Path, family: str) -> None:
    count, groups = EXPECTED[family]
    save_random(family, tmp_path, layers=2)
    plan = plan_in(tmp_path, SM_90, dtype="bfloat16", max_model_len=64)
    found = Counter(group.kernel for group in plan.kernels)
    assert found == Counter({**AROUND, **groups}), found
    step = decode_launches(KIND.sources(plan, SM_90)[LAUNCHES].encode()).launches
    assert sum(bool(each.variant(sizes_of_token(9))) for each in step) == count


def test_all_families_are_told() -> None:
    assert {*USUAL} <= {*EXPECTED}
