"""Formats chosen by measurement: budgets, what contradicts them, and what a plan has of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.artifact.plan import Plan
from ingot.artifact.traits import traits_of
from ingot.compiler.choose_formats import choose_formats
from ingot.compiler.compile import target_plans
from ingot.compiler.export import export
from ingot.compiler.front import Front
from ingot.compiler.kept_front import front_of
from ingot.compiler.model import OpenModel, read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.errors import UsageError
from ingot.models.model_dir import ModelDir
from tests.support.gguf_files import Type, write_gguf

torch.set_num_threads(1)

MODEL = Path(__file__).parents[2] / "golden/models/shakespeare"
DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module", autouse=True)
def little_text() -> Iterator[None]:
    """A text of a few tokens tells enough of a small model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingot.compiler.choose_formats.SEQUENCE_TOKENS", 48)
        yield


def opened(**options: Any) -> OpenModel:
    given = {"quantize": "auto", "targets": ("cpu:portable",), **options}
    return read_model(ModelDir.open(MODEL), CompileOptions(**given), Clock(silent))


@cache
def exported() -> GraphModule:
    model = opened()
    with model.checkpoint:
        return export(model.module, model.config)


def front(**options: Any) -> Front:
    model = opened(**options)
    with model.checkpoint:
        return front_of(model, Clock(silent), exported())


@cache
def chosen(bits: float) -> Front:
    return front(bits=bits)


def plan_of(found: Front, **options: Any) -> Plan:
    model = opened(**options)
    with model.checkpoint:
        (target,) = model.resolved.targets
        return target_plans(target, found, model.options)["step"][0]


def weight_bytes(found: Front) -> int:
    buffers = found.plan.of_kind("weight")
    return sum(b.format.nbytes([int(d) for d in b.shape]) for b in buffers)


def bits_of(found: Front) -> float:
    """The mean bits of a number in the matrices."""
    shapes = [(b, [*map(int, b.shape)]) for b in found.plan.of_kind("weight") if len(b.shape) > 1]
    taken = sum(b.format.nbytes(shape) for b, shape in shapes)
    return 8 * taken / sum(rows * columns for _, (rows, columns) in shapes)


def rows_of(plan: Plan) -> dict[str, str]:
    """The dtype that each product in integers reads, by the parameters of its matrix."""
    found = {}
    for i in plan.instructions:
        if name := traits_of(i).matrix:
            weight = plan.buffer(i.inputs[name])
            dtype = plan.buffer(i.inputs[traits_of(i).multiplied]).dtype
            found |= dict.fromkeys(weight.sources or (weight.name,), dtype)
    return found


@pytest.mark.parametrize("bits", [4.5, 5.0, 7.0])
def test_a_model_takes_no_more_bits_than_asked_for(bits: float) -> None:
    found = chosen(bits)
    assert bits - 0.4 < bits_of(found) <= bits
    assert "bits each in the mean, expected to cost" in found.choice


def test_more_bits_are_finer_formats() -> None:
    def bits(found: Front) -> int:
        return sum(stored.bits for stored in found.storage.values())

    assert bits(chosen(4.5)) < bits(chosen(5.0)) < bits(chosen(7.0))
    assert len({stored.label for stored in chosen(5.0).storage.values()}) > 1


def test_matrices_that_become_one_are_stored_alike() -> None:
    storage = chosen(5.0).storage
    for layer in range(6):
        q, k, v = (storage[f"model.layers.{layer}.self_attn.{x}_proj.weight"] for x in "qkv")
        assert q == k == v


def test_bytes_are_those_of_all_weights() -> None:
    found = front(max_bytes=4_000_000)
    assert 3_800_000 < weight_bytes(found) <= 4_000_000


def test_a_divergence_takes_the_fewest_bytes() -> None:
    loose, tight = front(max_kl=0.02), front(max_kl=0.004)
    assert weight_bytes(loose) < weight_bytes(tight)


def test_rules_win_over_what_is_measured() -> None:
    found = front(bits=8.0, keep=(f"{DOWN.removesuffix('.weight')}=int8", "lm_head=none"))
    assert found.storage[DOWN] == Storage(8, 128)
    assert "model.embed_tokens.weight" not in found.storage
    assert bits_of(found) <= 8.0  # the others leave room for them


def test_one_group_size_may_be_asked_for() -> None:
    assert {s.group for s in front(bits=5.0, group_size="64").storage.values()} == {64}


@pytest.mark.parametrize("kind", ["int4", "int6", "int8"])
def test_a_format_by_name_is_a_budget(kind: str) -> None:
    """The bytes are those that one format takes, and what rounding costs is less."""
    one = front(quantize=kind, group_size=128 if kind == "int8" else 32)
    found = front(quantize=kind)
    assert 0.97 * weight_bytes(one) < weight_bytes(found) < 1.01 * weight_bytes(one)
    assert found.storage != one.storage and not one.choice
    assert "expected to cost" in found.choice


def test_without_text_a_format_by_name_is_one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.compiler.model.sample_sequences", lambda *a, **k: [])
    found = front(quantize="int4")
    labels = {stored.label for stored in found.storage.values()}
    assert labels == {"int4-g32-zeros", "int8-g128"}
    assert found.choice == "one format, since no text tells what errors cost"
    assert not found.fine


def test_rules_win_in_a_format_by_name() -> None:
    found = front(quantize="int4", keep=(f"{DOWN.removesuffix('.weight')}=bf16",))
    assert DOWN not in found.storage
    assert len(found.storage) == len(front(quantize="int4").storage) - 1


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        ({"max_bytes": 1000}, r"--max-bytes is 1000, but the weights take \d+", r"--max-bytes \d+"),
        ({"bits": 2.0}, r"--bits is 2, but the weights take 4\.\d+ bits", r"--bits 4\.\d+"),
        ({"bits": 5.0, "max_bytes": 10**7}, "--bits and --max-bytes are given", "one of them"),
        ({"quantize": "int4", "bits": 5.0}, "--bits needs --quantize auto", ""),
        ({"quantize": "int4", "max_bytes": 9}, "--max-bytes needs --quantize auto", ""),
        ({"group_size": "channel"}, "--group-size is channel for auto", "32, 64, 128"),
        ({"group_size": 48}, "--group-size is 48 for auto", "32, 64, 128"),
        ({"activations": "int4"}, "unknown rounding of activations 'int4'", "int8, int16, auto"),
    ],
)
def test_budgets_that_cannot_be_met_say_what_can(
    options: dict[str, Any], error: str, hint: str
) -> None:
    with pytest.raises(UsageError) as found:
        front(**options)
    assert re.search(error, found.value.found)
    assert re.search(hint, found.value.hint or "")


@pytest.mark.parametrize(
    "options", [{"bits": 0.0}, {"bits": 33.0}, {"max_bytes": 0}, {"bits": "many"}]
)
def test_budgets_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be"):
        CompileOptions(**options)


def test_no_text_that_the_tokenizer_knows_is_an_error() -> None:
    model = opened()
    object.__setattr__(model, "sample", [])
    with model.checkpoint, pytest.raises(UsageError, match="nothing tells what errors cost"):
        choose_formats(model, chosen(4.5).reference, Clock(silent))


def test_all_rows_or_none_are_fine_if_asked_for() -> None:
    options = {"quantize": "int8", "activations": "int16"}
    found = front(**options)
    assert found.fine == frozenset(found.storage)
    assert set(rows_of(plan_of(found, **options)).values()) == {"int16"}
    plain = front(quantize="int8")
    assert set(rows_of(plan_of(plain, quantize="int8")).values()) == {"int8"}


def test_rows_of_given_formats_can_be_chosen_alone() -> None:
    options = {"quantize": "int8", "activations": "auto"}
    found = front(**options)
    assert found.storage == front(quantize="int8").storage
    rows = rows_of(plan_of(found, **options))
    assert {n for n, dtype in rows.items() if dtype == "int16"} == found.fine
    assert re.search(r"expected to cost [\d.e-]+ nats, and their rows [1-9\d.e-]+", found.choice)


def test_rows_of_integers_that_a_checkpoint_has_are_measured_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are stored as they are, and so cost nothing; the rows that they multiply do."""
    monkeypatch.setattr("ingot.compiler.quantization.budget.FREE_ROWS", 1e-5)
    path = write_gguf(MODEL, tmp_path / "model.gguf", Type.Q4_1)
    options = CompileOptions(activations="auto", targets=("cpu:portable",))
    model = read_model(ModelDir.open(path), options, Clock(silent))
    with model.checkpoint:
        found = choose_formats(model, exported(), Clock(silent))
    assert {stored.minimums for stored in found.storage.values()} == {True}
    assert found.fine and float(found.in_words.split()[4]) > 0
    assert found.in_words.startswith("rows expected to cost ")


def test_a_gpu_that_rounds_no_rows_chooses_none() -> None:
    found = front(bits=5.0, targets=("cuda:sm_90",))
    assert found.fine == frozenset() and "rows" not in found.choice
    assert {stored.bits for stored in found.storage.values()} & {5, 6}
