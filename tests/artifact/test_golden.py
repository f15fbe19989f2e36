"""Files of goldens: what is written is read, and what is none is refused in words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ingot.artifact.golden import (
    Golden,
    GoldenModel,
    GoldenPosition,
    GoldenPrompt,
    Tolerance,
    check_model,
    decode_golden,
    encode_golden,
    format_name,
    tolerance_of,
)
from ingot.artifact.golden_error import difference
from ingot.artifact.manifest import Numerics
from ingot.errors import GoldenError
from tests.runtime.fake_model import make_manifest

MODEL = GoldenModel("fake", "FakeForCausalLM", 320, 1, 1040)


def positions() -> list[GoldenPosition]:
    return [
        GoldenPosition(3, [(7, -0.25), (1, -2.5)], -0.25, 2.25, ' "é'),
        GoldenPosition(7, [(2, -0.5), (3, -1.5)], None, 1.0, "\n"),
    ]


def golden() -> Golden:
    prompts = [
        GoldenPrompt(positions(), given=1, text='a "b"\n'),
        GoldenPrompt(positions(), given=1, sampled=True),
    ]
    tolerances = {
        "float32": Tolerance(1e-6, 1.5e-6, 3e-6, 1e-9),
        "int4-g32": Tolerance(0.1, 0.2, 0.5, 0.1),
    }
    return Golden(2, MODEL, tolerances, prompts)


def test_what_is_written_is_read() -> None:
    data = encode_golden(golden())
    assert decode_golden(data, "x") == golden()
    assert encode_golden(decode_golden(data, "x")) == data


def test_a_position_has_a_line_of_its_own() -> None:
    """So that a diff shows what changed, and nothing else."""
    lines = encode_golden(golden()).decode().splitlines()
    changed = golden()
    changed.prompts[1].positions[1].top[0] = (2, -0.51)
    others = encode_golden(changed).decode().splitlines()
    differ = [i for i, (a, b) in enumerate(zip(lines, others, strict=True)) if a != b]
    assert differ == [i for i, line in enumerate(lines) if '"token": 7' in line][1:]
    first = '   {"token": 3, "top": [[7, -0.25], [1, -2.5]], "next": -0.25, "margin": 2.25, '
    assert first + '"piece": " \\"é"},' in lines


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_file_that_is_cut_off_is_refused(share: float) -> None:
    data = encode_golden(golden())
    with pytest.raises(GoldenError, match=r"goldens\.json is no file of goldens") as caught:
        decode_golden(data[: int(share * len(data))], "goldens.json")
    assert "ingot golden record" in caught.value.hint and caught.value.exit_code == 2


@pytest.mark.parametrize(("version", "word"), [(3, "Update ingot"), (1, "Record")])
def test_another_format_is_refused_in_words(version: int, word: str) -> None:
    data = encode_golden(golden()).replace(b'"format": 2', b'"format": %d' % version)
    data = data.replace(b'"given"', b'"a_newer_field"')
    with pytest.raises(GoldenError, match=f"goldens of format {version}, and .* reads format 2"):
        decode_golden(data, "x")
    with pytest.raises(GoldenError) as caught:
        decode_golden(data, "x")
    assert caught.value.hint.startswith(word)


@pytest.mark.parametrize(
    ("field", "value", "refused"),
    [("name", "renamed", False), ("architecture", "B", True), ("vocab_size", 321, True),
     ("num_layers", 2, True), ("num_parameters", 1041, True)],
)  # fmt: skip
def test_goldens_of_another_model_are_refused(field: str, value: object, refused: bool) -> None:
    model = {name: getattr(MODEL, name) for name in GoldenModel.__struct_fields__} | {field: value}
    of = Golden(2, GoldenModel(**model), golden().tolerances, golden().prompts)
    if not refused:
        check_model(of.model, make_manifest(), "x")
        return
    with pytest.raises(GoldenError, match=f"another model, fake: {field} is {value} there"):
        check_model(of.model, make_manifest(), "x")


@pytest.mark.parametrize(
    ("dtype", "quantization", "int8_cache", "name"),
    [
        ("bfloat16", "none", False, "bfloat16"),
        ("float32", "none", True, "float32+int8-cache"),
        ("bfloat16", "int4-g32 + int8-g128", False, "int4-g32"),
        ("bfloat16", "int8-g128 + int4-g64, calibrated", True, "int4-g64+int8-cache"),
        ("float32", "int8-g32 + int8-channel", False, "int8-channel"),
        ("float32", "int4-g32 + int4-g128", False, "int4-g128"),
    ],
)
def test_the_coarsest_storage_names_the_format(
    dtype: str, quantization: str, int8_cache: bool, name: str
) -> None:
    numerics = Numerics(dtype=dtype, quantization=quantization, tolerance=0.0)
    assert format_name(numerics, int8_cache=int8_cache) == name


def test_the_tolerances_of_two_roundings_add_up() -> None:
    cache = Tolerance(0.01, 0.015, 0.03, 0.04)
    weights = Tolerance(0.1, 0.2, 0.5, 0.09)
    known = {"bfloat16+int8-cache": cache, "int4-g32": weights}
    assert tolerance_of(known, "int4-g32", "x") == weights
    found = tolerance_of(known, "int4-g32+int8-cache", "x")
    assert found.mean == pytest.approx(0.215) and found.largest == pytest.approx(0.53)
    assert found.kl == pytest.approx(0.25)  # (0.2 + 0.3)^2
    with pytest.raises(GoldenError, match="x has no tolerance for int8-g32") as caught:
        tolerance_of(known, "int8-g32", "x")
    assert "--formats int8-g32" in caught.value.hint and "int4-g32" in caught.value.hint


def prompt_of(logits: np.ndarray, tokens: list[int], listed: int = 2) -> GoldenPrompt:
    """What a reference with these logits says of the tokens, with the likeliest."""
    rows = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    positions = [
        GoldenPosition(
            token,
            [(int(i), float(row[i])) for i in np.argsort(-row)[:listed]],
            float(row[tokens[t + 1]]) if t + 1 < len(tokens) else None,
        )
        for t, (token, row) in enumerate(zip(tokens, rows, strict=True))
    ]
    return GoldenPrompt(positions, given=1)


def test_errors_are_those_of_log_probabilities() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    prompt = prompt_of(logits.astype(np.float64), [1, 4, 2])
    same = difference([prompt], [logits + 3])  # a constant changes no probability
    assert same.mean < 1e-6 and same.largest < 1e-6 and same.kl < 1e-12
    other = logits.copy()
    other[1, 4] += 2.0
    rows = [x.astype(np.float64) - np.log(np.exp(x.astype(np.float64)).sum(-1, keepdims=True))
            for x in (logits, other)]  # fmt: skip
    listed = [{*np.argsort(-logits[t])[:2], *[1, 4, 2][t + 1 : t + 2]} for t in range(3)]
    errors = [abs(rows[0][t, i] - rows[1][t, i]) for t in range(3) for i in listed[t]]
    found = difference([prompt], [other])
    assert found.mean == pytest.approx(np.mean(errors), abs=1e-6)
    assert found.largest == pytest.approx(np.max(errors), abs=1e-6)


def test_a_nan_is_the_largest_error() -> None:
    logits = np.zeros((2, 4), np.float32)
    prompt = prompt_of(logits.astype(np.float64), [0, 1])
    logits[1, 2] = np.nan
    found = difference([prompt], [logits])
    assert found.mean == found.largest == found.kl == math.inf
    assert not found.within(Tolerance(1, 1, math.inf, math.inf))


def test_the_divergence_is_that_of_the_distributions() -> None:
    """Where all tokens are listed; otherwise what those that are listed contribute to it."""
    rng = np.random.default_rng(1)
    reference, ours = rng.normal(size=(2, 1, 6))
    p, q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (reference, ours))
    exact = float((np.exp(p) * (p - q)).sum())
    whole = prompt_of(reference, [0], listed=6)
    assert difference([whole], [ours]).kl == pytest.approx(exact)
    for listed in (1, 2, 5):
        found = difference([prompt_of(reference, [0], listed=listed)], [ours]).kl
        assert 0 < found < exact


def test_a_token_that_is_listed_twice_counts_once() -> None:
    reference = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    ours = reference + np.array([0.5, 0.0, 0.0])
    apart, same = (difference([prompt_of(reference, [0, t])], [ours]) for t in (0, 2))
    assert apart.kl > same.kl  # the prompt's next token is not among the two likeliest, or is


def test_positions_that_are_not_scored_need_no_logits() -> None:
    reference = np.random.default_rng(2).normal(size=(4, 6))
    prompt = prompt_of(reference, [0, 1, 2, 3])
    whole = difference([prompt], [reference + 0.1 * np.eye(4, 6)])
    for position in prompt.positions[:2]:
        position.top, position.next = [], None
    assert (prompt.first, len(prompt.scored)) == (2, 2)
    found = difference([prompt], [(reference + 0.1 * np.eye(4, 6))[2:]])
    assert 0 < found.largest <= whole.largest
    with pytest.raises(ValueError, match="zip"):
        difference([prompt], [reference])
