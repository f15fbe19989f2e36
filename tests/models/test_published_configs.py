"""Published files of dense families: each is read whole and makes a model of its known size."""

from __future__ import annotations

import contextlib
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.errors import ConfigError, IngotError
from ingot.models import registry
from ingot.models.config import ModelConfig
from tests.models.test_config import changes_of
from tests.support.core import core
from tests.support.published import PUBLISHED
from tests.support.published_variants import VARIANTS

# Parameters in millions, as the models' pages round them: of text towers, without images.
MILLIONS = {
    "google/gemma-2b": 2506,
    "google/gemma-3-1b-it": 1000,
    "google/gemma-3-4b-it": 3880,
    "microsoft/Phi-3-mini-128k-instruct": 3821,
    "zai-org/GLM-4-9B-0414": 9400,
    "allenai/OLMo-2-0425-1B": 1485,
    "allenai/Olmo-3-7B-Instruct": 7298,
    "ibm-granite/granite-3.3-2b-instruct": 2534,
    "HuggingFaceTB/SmolLM3-3B": 3075,
    "CohereForAI/aya-expanse-8b": 8028,
    "CohereForAI/c4ai-command-r7b-12-2024": 8028,
    "bigcode/starcoder2-3b": 3030,
    "EleutherAI/pythia-160m": 162,
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": 23572,
    "LGAI-EXAONE/EXAONE-4.0-32B": 32003,
    "tencent/Hunyuan-1.8B-Instruct": 1791,
    "ByteDance-Seed/Seed-OSS-36B-Instruct": 36151,
    "baidu/ERNIE-4.5-0.3B-PT": 361,
    "meta-llama/Llama-3.2-1B-Instruct": 1236,
    "mistralai/Mistral-7B-Instruct-v0.3": 7248,
    "Qwen/Qwen2.5-0.5B-Instruct": 494,
    "Qwen/Qwen3-0.6B": 596,
    "google/gemma-3-270m-it": 268,
    "microsoft/Phi-4-mini-instruct": 3836,
    "microsoft/Phi-3.5-mini-instruct": 3821,
    "zai-org/glm-4-9b-chat-hf": 9400,
    "CohereForAI/c4ai-command-r-plus": 103811,
    "LGAI-EXAONE/EXAONE-4.0-1.2B": 1279,
    "mistralai/Ministral-3-3B-Instruct-2512": 3429,
}
EVERY = PUBLISHED | VARIANTS


def parse(name: str, **changes: Any) -> ModelConfig:
    return registry.parse_config({**EVERY[name], **changes})


@pytest.mark.parametrize("name", EVERY)
def test_a_published_file_makes_a_model_of_its_size(name: str) -> None:
    sizes = registry.blueprint(parse(name)).parameters.values()
    assert sum(map(prod, sizes)) / 1e6 == pytest.approx(MILLIONS[name], rel=0.01)


def test_the_tower_of_gemma_3_has_its_defaults() -> None:
    config = parse("google/gemma-3-4b-it")
    named = config.family.name
    assert (named, config.vocab_size, config.eos_token_ids) == ("gemma3", 262208, (1, 106))
    assert config.windows[:12] == ((1024,) * 5 + (0,)) * 2 and config.tie_embeddings
    full, sliding = config.layers[5].mixer.rope, config.layers[0].mixer.rope
    assert (full.type, full.factor, full.theta) == ("linear", 8.0, 1e6)
    assert (sliding.type, sliding.theta) == ("default", 1e4)


def test_settings_of_a_quantization_stand_beside_a_tower() -> None:
    quantized = parse("google/gemma-3-4b-it", quantization_config={"quant_method": "gptq"})
    assert quantized == parse("google/gemma-3-4b-it")


def test_rotations_of_single_layers() -> None:
    smol = [layer.mixer.rope.rotates for layer in parse("HuggingFaceTB/SmolLM3-3B").layers]
    assert smol == [True, True, True, False] * 9
    command = parse("CohereForAI/c4ai-command-r7b-12-2024")
    assert [layer.mixer.rope.rotates for layer in command.layers[:4]] == [True] * 3 + [False]
    exaone = parse("LGAI-EXAONE/EXAONE-4.0-32B")
    assert exaone.windows[:4] == (4096,) * 3 + (0,) and exaone.windows[-1] == 0
    assert [layer.mixer.rope.rotates for layer in exaone.layers[:4]] == [True] * 3 + [False]
    full, sliding = (parse("allenai/Olmo-3-7B-Instruct").layers[i].mixer.rope for i in (3, 0))
    assert (full.type, sliding.type) == ("yarn", "default")


def test_an_alpha_stretches_theta_for_good() -> None:
    rope = parse("tencent/Hunyuan-1.8B-Instruct").ropes[0]
    assert rope.type == "default" and rope.theta == 10000.0 * 1000.0 ** (128 / 126)


def test_granite_folds_the_multiplier_of_residuals() -> None:
    config = parse("ibm-granite/granite-3.3-2b-instruct")
    assert config.embedding_scale == 12.0 / 0.22 and config.logit_scale == 1 / 8
    assert config.norm_eps == pytest.approx(1e-5 / 0.22**2)
    assert config.layers[0].mixer.scale == 0.015625


@pytest.mark.parametrize(
    ("name", "named", "changes"),
    [
        ("google/gemma-2b", "hidden_act", {"hidden_act": "relu"}),
        ("google/gemma-3-1b-it", "use_bidirectional_attention",
         {"use_bidirectional_attention": True}),
        ("google/gemma-3-1b-it", "attn_logit_softcapping", {"attn_logit_softcapping": 50.0}),
        ("google/gemma-3-1b-it", "sliding_window_pattern", {"sliding_window_pattern": 0}),
        ("google/gemma-3-1b-it", "rope_local_base_freq", {"rope_local_base_freq": -1}),
        ("google/gemma-3-1b-it", "mm_tokens_per_image", {"mm_tokens_per_image": 256}),
        ("google/gemma-3-4b-it", "video_token_id", {"video_token_id": 3}),
        ("google/gemma-3-4b-it", "text_config", {"text_config": {"hidden_sise": 3}}),
        ("google/gemma-3-4b-it", "text_config", {"text_config": 3}),
        ("microsoft/Phi-3-mini-128k-instruct", "short_factor", {"rope_scaling": {
            "long_factor": [1.0] * 48, "short_factor": [1.0] * 47, "type": "yarn"}}),
        ("microsoft/Phi-4-mini-instruct", "full_attn_mod", {"full_attn_mod": 2}),
        ("microsoft/Phi-4-mini-instruct", "mlp_bias", {"mlp_bias": True}),
        ("zai-org/GLM-4-9B-0414", "partial_rotary_factor", {"partial_rotary_factor": 1.5}),
        ("allenai/Olmo-3-7B-Instruct", "layer_types", {"layer_types": ["full_attention"]}),
        ("ibm-granite/granite-3.3-2b-instruct", "residual_multiplier", {"residual_multiplier": 0}),
        ("ibm-granite/granite-3.3-2b-instruct", "logits_scaling", {"logits_scaling": 0.0}),
        ("HuggingFaceTB/SmolLM3-3B", "no_rope_layers", {"no_rope_layers": [1, 0]}),
        ("HuggingFaceTB/SmolLM3-3B", "no_rope_layers", {"no_rope_layers": [2] * 36}),
        ("CohereForAI/aya-expanse-8b", "use_qk_norm", {"use_qk_norm": "yes"}),
        ("CohereForAI/c4ai-command-r7b-12-2024", "use_parallel_block",
         {"use_parallel_block": False}),
        ("CohereForAI/c4ai-command-r7b-12-2024", "head_dim", {"head_dim": 64}),
        ("bigcode/starcoder2-3b", "norm_type", {"norm_type": "rms_norm"}),
        ("EleutherAI/pythia-160m", "rotary_pct", {"rotary_pct": 0.0}),
        ("EleutherAI/pythia-160m", "use_parallel_residual", {"use_parallel_residual": 1}),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "model_type",
         {"text_config": {"model_type": "mamba"}}),
        ("LGAI-EXAONE/EXAONE-4.0-32B", "sliding_window_pattern", {"sliding_window_pattern": "LLX"}),
        ("tencent/Hunyuan-1.8B-Instruct", "use_cla", {"use_cla": True}),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", "attention_out_bias", {"attention_out_bias": 0}),
        ("baidu/ERNIE-4.5-0.3B-PT", "use_bias", {"use_bias": None, "use_biases": True}),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(
    name: str, named: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(name, **changes)
    assert named in caught.value.found and caught.value.hint


@pytest.mark.parametrize("name", core("google/gemma-3-4b-it", further=PUBLISHED))
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_json_gives_a_config_or_a_typed_error(name: str, data: st.DataObject) -> None:
    changes = data.draw(changes_of(PUBLISHED[name]))
    with contextlib.suppress(IngotError):  # any other error fails the test
        assert isinstance(parse(name, **changes), ModelConfig)
    fields = {**PUBLISHED[name], **changes}
    if fields["architectures"] == PUBLISHED[name]["architectures"]:
        registry.read_config(registry.find_family(fields), fields)  # notes faults and goes on
