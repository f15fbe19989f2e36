"""The gate on what number formats cost: it refuses ruin, names the matrix, and says what helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ingot.artifact.formats import Format, Storage
from ingot.artifact.quality import Quality
from ingot.compiler.export import export
from ingot.compiler.quality import Setting, measure
from ingot.compiler.quality_gate import ErrorsByMatrix, check_quality
from ingot.compiler.quality_texts import own_texts, pieces_of
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.rounding import Rounded, Roundings
from ingot.compiler.tokenizer import load_tokenizer
from ingot.errors import QualityError
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.model_dir import ModelDir
from ingot.ops.scaled import Operand, Scaled

MODEL = Path(__file__).parents[2] / "golden" / "models" / "shakespeare"
WRONG = "model.layers.3.mlp.down_proj.weight"
INT8 = Storage(8, 32)


def two_bits(value: Scaled) -> Scaled:
    numbers = value.dequantize()
    coarse = Format("int4", 32, 32, "float16")
    rounded = quantize_rows(numbers, coarse)
    return replace(rounded, values=(rounded.values // 4 * 4).to(torch.int8))


RUIN: dict[str, Callable[[Scaled], Scaled]] = {
    "two bits": two_bits,
    "zeroed": lambda value: replace(value, values=torch.zeros_like(value.values)),
    "scales doubled": lambda value: replace(value, scales=2 * value.scales),
}


@pytest.fixture(scope="module")
def setting() -> Setting:
    """The bundled model in int8."""
    config = registry.load_config(ModelDir.open(MODEL))
    module = registry.build(config, max_model_len=1024)
    checkpoint = Checkpoint.open(ModelDir.open(MODEL), config, module)
    names = [name for name, p in module.named_parameters() if p.dim() == 2 and "embed" not in name]
    kept: dict[str, Scaled] = {}

    def stored(name: str) -> Operand:
        value = checkpoint.read(name)
        if name not in names:
            return value
        return kept.setdefault(name, quantize_rows(value, INT8.of(value.shape[-1])))

    form = Format("int8", 32, 32)
    roundings = Roundings(dict.fromkeys(names, form), dict.fromkeys(names, form))
    texts = pieces_of(
        own_texts(load_tokenizer(ModelDir.open(MODEL), config.vocab_size), ()), 200, 1024
    )
    return Setting(export(module, config), checkpoint.read, [Rounded(roundings, stored)], texts)


@pytest.fixture(scope="module")
def healthy(setting: Setting) -> Quality:
    """What int8 costs it where nothing is ruined."""
    return measure(setting)


def ruined(setting: Setting, ruin: Callable[[Scaled], Scaled], layer: str = WRONG) -> Setting:
    """The same, with the matrices whose names contain `layer` stored wrongly."""
    (way,) = setting.ways

    def read(name: str) -> Operand:
        value = way.read(name)
        return ruin(value) if layer in name and isinstance(value, Scaled) else value

    return replace(setting, ways=[Rounded(way.roundings, read)])


def quality(**changes: float) -> Quality:
    figures = dict.fromkeys(
        ("kl", "kl_error", "kl_p99", "kl_largest", "same_top", "perplexity"), 0.1
    )
    return Quality(**{"positions": 9, "base_perplexity": 10.0, "text": "x", **figures, **changes})


def test_what_integers_cost_a_trained_model_is_little(setting: Setting, healthy: Quality) -> None:
    assert healthy.positions == 200 and 0 < healthy.kl < 0.01
    assert healthy.perplexity == pytest.approx(healthy.base_perplexity, rel=0.02)
    check_quality(healthy, None, 2048, setting)


@pytest.mark.parametrize("kind", RUIN)
def test_the_matrix_that_is_ruined_is_named_with_a_remedy_that_was_tried(
    setting: Setting, healthy: Quality, kind: str
) -> None:
    wrong = ruined(setting, RUIN[kind])
    found = measure(wrong)
    with pytest.raises(QualityError) as caught:
        check_quality(found, 2 * healthy.kl, 2048, wrong)
    assert f"of the matrices {WRONG} (" in caught.value.found
    assert "stands out" in caught.value.found and "quality gate" in caught.value.found
    option = "--keep 'model.layers.3.mlp.down_proj=bf16'"
    assert caught.value.hint.startswith("Tried, and it passes") and option in caught.value.hint


def test_a_ruined_layer_is_refused_by_default(setting: Setting) -> None:
    wrong = ruined(setting, RUIN["zeroed"], "layers.0.")
    found = measure(wrong)
    assert found.kl > 0.5
    with pytest.raises(QualityError, match=r"at most 0\.5 allowed.*layers\.0\.") as caught:
        check_quality(found, None, 2048, wrong)
    assert "--quantize" in caught.value.hint


def test_where_no_matrix_stands_out_none_is_blamed(setting: Setting, healthy: Quality) -> None:
    with pytest.raises(QualityError, match="no matrix stands out; most in") as caught:
        check_quality(healthy, 1e-6, 2048, setting)
    assert "--quantize none" in caught.value.hint


def test_nothing_that_was_tried_passes(setting: Setting, healthy: Quality) -> None:
    """A limit of zero: bfloat16 itself moves logits."""
    with pytest.raises(QualityError) as caught:
        check_quality(healthy, 0.0, 2048, setting)
    assert "Nothing that was tried passes" in caught.value.hint


@pytest.mark.parametrize(
    ("found", "max_kl", "refused"),
    [
        (quality(kl=0.5), None, False),
        (quality(kl=0.51), None, True),
        (quality(kl=0.51, base_perplexity=1030.0), None, False),  # it guesses: nothing is ruined
        (quality(kl=0.51, base_perplexity=1030.0), 0.5, True),  # a limit of the user's
        (quality(kl=float("inf"), base_perplexity=1030.0), None, True),  # no numbers at all
        (quality(kl=0.2), 0.1, True),
        (quality(kl=0.7), 1.0, False),
    ],
)
def test_what_is_refused(
    setting: Setting, found: Quality, max_kl: float | None, refused: bool
) -> None:
    if not refused:
        check_quality(found, max_kl, 2048, setting)
        return
    with pytest.raises(QualityError):
        check_quality(found, max_kl, 2048, setting)


def test_errors_do_not_add_up_from_matrix_to_matrix(setting: Setting) -> None:
    alone = ErrorsByMatrix(setting).found()
    wrong = ErrorsByMatrix(ruined(setting, RUIN["zeroed"], "layers.0.")).found()
    later = [name for name in alone if "layers.0." not in name]
    assert all(wrong[name] == alone[name] for name in later)
    assert all(wrong[name] == pytest.approx(1.0) for name in wrong if "layers.0." in name)
