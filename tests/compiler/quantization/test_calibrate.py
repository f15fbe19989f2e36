"""Calibration of a whole model, and the texts that it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.fx import Node

from bench.quality import CASES, NUM_CALIBRATING, Bench, Sequences
from ingot.artifact.formats import Storage
from ingot.compiler.quantization.calibrate import Calibrator
from ingot.compiler.quantization.choose import choose_storage
from ingot.compiler.quantization.graph_matrices import matrices_in
from ingot.compiler.quantization.quantize import quantize_weights
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.quantization.sequences import MIN_TOKENS, calibration_sequences
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.compiler.reference import Interpreter
from ingot.errors import CheckpointError, TokenizerError, UsageError
from ingot.ops.scaled import Operand
from tests.compiler.quantization.integers import integers
from tests.support.odd_files import ODD_FILES, ODD_PATHS, odd_paths

torch.set_num_threads(1)

ROOT = Path(__file__).parents[3]
SAMPLED: list[list[int]] = json.loads((ROOT / "golden/shakespeare/sampled.json").read_text())
TABLE = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(ROOT / "golden/models/shakespeare/tokenizer.json"))


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(None, 0)


def text(tokenizer: Tokenizer, count: int) -> str:
    return tokenizer.decode([token for row in SAMPLED for token in row][:count])


def test_sequences_are_spread_over_the_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(text(tokenizer, 4000))
    ids = tokenizer.encode(path.read_text()).ids
    got = calibration_sequences(path, tokenizer, max_model_len=100)
    assert all(len(row) == 100 for row in got)
    assert got[0] == ids[:100] and got[-1] == ids[-100:]
    assert len(calibration_sequences(path, tokenizer, max_model_len=4096)[0]) == 512
    assert calibration_sequences(None, tokenizer, max_model_len=100) == []


def test_texts_that_cannot_calibrate_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(text(tokenizer, MIN_TOKENS // 2))
    with pytest.raises(UsageError, match=f"too short: .* tokens\n.*{MIN_TOKENS}"):
        calibration_sequences(path, tokenizer, max_model_len=512)
    path.write_bytes(b"abc\xff" * 9000)
    with pytest.raises(UsageError, match="not UTF-8: byte 3"):
        calibration_sequences(path, tokenizer, max_model_len=512)
    with pytest.raises(UsageError, match="cannot read"):
        calibration_sequences(tmp_path / "none.txt", tokenizer, max_model_len=512)


def head_inputs(bench: Bench, weights: QuantizedWeights, sequences: Sequences) -> torch.Tensor:
    """What the head multiplies, if the table is looked up as it was."""
    found = []

    class Watching(Interpreter):
        def weight_of(self, node: Node, rows: torch.Tensor) -> Operand:
            if str(node.args[1].target) == TABLE:  # type: ignore[union-attr]
                found.append(rows[0])
            return super().weight_of(node, rows)

    def read(name: str) -> torch.Tensor:
        return (bench.checkpoint if name == TABLE else weights).read(name)

    Watching(bench.gm, read, sequences).run()
    return found[0]


@pytest.mark.slow
def test_quality_of_every_case_on_sampled_sequences(bench: Bench) -> None:
    kl = {case.name: bench.measure(case, None).kl for case in CASES}
    assert 0 < kl["int8 keys and values"] < 1e-4
    assert kl["int8 g32"] < 5e-4
    assert kl["int8 channel"] < 1.5e-3
    assert kl["int4 g32"] < 1.5e-2
    assert kl["int4 g128"] < 2.5e-2
    # Calibrated on other samples of the model.
    for group in ("g32", "g128"):
        assert kl[f"int4 {group}, calibrated"] < 0.85 * kl[f"int4 {group}"]


def test_the_tied_table_is_searched_and_linears_are_not(bench: Bench, tmp_path: Path) -> None:
    storage = choose_storage(
        matrices_in(bench.gm), Storage(4, 32), ("layers.[1-5].*=none",), "bfloat16"
    )
    read = bench.checkpoint.read
    with QuantizedWeights(read, tmp_path) as weights:
        quantize_weights(bench.gm, weights, storage, SAMPLED[:NUM_CALIBRATING])
        importance = head_inputs(bench, weights, SAMPLED[:NUM_CALIBRATING]).square().mean(0)
        table = quantize_rows(read(TABLE), integers(8, 32), importance)
        assert torch.equal(weights.matrix(TABLE).values, table.values)
        assert torch.equal(weights.matrix(TABLE).scales, table.scales)
        assert torch.equal(weights.read(TABLE), table.dequantize())
        name = "model.layers.0.mlp.down_proj.weight"
        searched = quantize_rows(read(name), integers(4, 32, 128))
        assert not torch.equal(weights.matrix(name).values, searched.values)
        kept = "model.layers.1.mlp.down_proj.weight"
        assert kept not in weights and torch.equal(weights.read(kept), read(kept))
    assert list(tmp_path.iterdir()) == []


def test_each_linear_is_rounded_for_what_those_before_it_have_become(
    bench: Bench, tmp_path: Path
) -> None:
    storage = choose_storage(
        matrices_in(bench.gm), Storage(4, 32), ("layers.[1-5].*=none",), "bfloat16"
    )
    last, sequences = "model.layers.0.mlp.down_proj.weight", SAMPLED[:NUM_CALIBRATING]
    read = bench.checkpoint.read
    with QuantizedWeights(read, tmp_path) as weights, QuantizedWeights(read, tmp_path) as again:
        quantize_weights(bench.gm, weights, storage, sequences)
        for name in storage.keys() - {last, TABLE}:  # a table is looked up as it was
            again.add(name, storage[name].bits, [weights.matrix(name)])
        Calibrator(bench.gm, again, storage, sequences).run()
        assert torch.equal(again.matrix(last).values, weights.matrix(last).values)


@pytest.mark.parametrize("zeros", [False, True])
def test_a_sample_weighs_the_search_of_every_matrix(
    bench: Bench, tmp_path: Path, zeros: bool
) -> None:
    """For the inputs that matrices before it give as they are stored; and each is read once."""
    base, sequences = Storage(4, 32, zeros=zeros), SAMPLED[:4]
    storage = choose_storage(matrices_in(bench.gm), base, ("layers.[1-5].*=none",), "bfloat16")
    read, told, seen = bench.checkpoint.read, [], {}

    class Watching(Interpreter):
        def weight_of(self, node: Node, rows: torch.Tensor) -> Operand:
            seen[str(node.args[1].target)] = rows[0]  # type: ignore[union-attr]
            return super().weight_of(node, rows)

    with QuantizedWeights(read, tmp_path) as weights:
        weights.on_read = told.append
        quantize_weights(bench.gm, weights, storage, sample=sequences)
        assert storage.keys() <= set(told)
        assert told.count(TABLE) == 1 and told.index(TABLE) == len(told) - 1
        Watching(bench.gm, lambda n: (read if n == TABLE else weights.read)(n), sequences).run()
        for name, stored in storage.items():
            form, importance = stored.of(read(name).shape[-1]), seen[name].square().mean(0)
            wanted = quantize_rows(read(name), form, importance).dequantize()
            assert float((weights.read(name) != wanted).float().mean()) < 1e-3
            plain = quantize_rows(read(name), form).dequantize()
            off = [(each - read(name)).square() @ importance for each in (wanted, plain)]
            assert float(off[0].sum()) < float(off[1].sum())


@pytest.mark.parametrize("count", [0, 1])
def test_weights_that_are_too_large_are_named_with_those_to_keep(
    bench: Bench, tmp_path: Path, count: int
) -> None:
    layer = "model.layers.0.self_attn."

    def read(name: str) -> torch.Tensor:
        scale = 1e9 if name == f"{layer}k_proj.weight" else 1
        return bench.checkpoint.read(name).float() * scale

    storage = choose_storage(
        matrices_in(bench.gm), Storage(4, 32), ("layers.[1-5].*=none",), "bfloat16"
    )
    with QuantizedWeights(read, tmp_path) as weights, pytest.raises(CheckpointError) as caught:
        quantize_weights(bench.gm, weights, storage, SAMPLED[:count])
    assert caught.value.found.startswith(f"{layer}k_proj.weight: weights up to")
    keep = re.findall(r"--keep '(.+?)=none'", caught.value.hint)
    assert sorted(keep) == [f"layers.0.self_attn.{x}_proj" for x in "kqv"]


@pytest.mark.parametrize("make", ODD_FILES.values(), ids=ODD_FILES)
def test_a_text_that_is_no_file_is_refused_at_once(
    make: Callable[[Path], object], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    make(tmp_path / "text")
    with pytest.raises(UsageError, match="cannot read the calibration text"):
        calibration_sequences(tmp_path / "text", tokenizer, max_model_len=64)


@pytest.mark.parametrize("name", ODD_PATHS)
def test_a_path_that_no_text_can_be_at_is_refused(
    name: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="cannot read the calibration text"):
        calibration_sequences(Path(odd_paths(tmp_path)[name]), tokenizer, max_model_len=64)


def test_a_text_that_the_tokenizer_does_not_know_is_refused(tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({"a": 0}, unk_token="<unk>"))
    (tmp_path / "text").write_text("b")
    with pytest.raises(TokenizerError, match="cannot encode the calibration text"):
        calibration_sequences(tmp_path / "text", words, max_model_len=64)
