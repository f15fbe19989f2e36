"""A file is moved off the grid that it was quantized to, and no further."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

from bench.dither import main, moved, steps

KIND = gguf.GGMLQuantizationType.Q4_1
GROUP = 32
RANDOM = np.random.default_rng(5)
WEIGHTS = quantize(RANDOM.normal(size=(8, 64)).astype(np.float32), KIND)
VECTOR = RANDOM.normal(size=64).astype(np.float32)


def written(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(77)
    writer.add_token_list(["a", "b"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_tensor("a.weight", WEIGHTS, raw_dtype=KIND)
    writer.add_tensor("norm.weight", VECTOR)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dithered(folder: Path, name: str, seed: int) -> gguf.GGUFReader:
    source = written(folder / "source.gguf")
    assert main([str(source), str(folder / name), "--seed", str(seed)]) == 0
    return gguf.GGUFReader(folder / name)


def test_weights_move_by_less_than_half_a_step_of_their_group(tmp_path):
    matrix, vector = dithered(tmp_path, "a.gguf", 1).tensors
    assert matrix.tensor_type == gguf.GGMLQuantizationType.F16
    before = dequantize(WEIGHTS, KIND).reshape(-1, GROUP)
    by = np.abs(matrix.data.astype(np.float32).reshape(-1, GROUP) - before)
    rounding = np.abs(before).max() * 2**-11  # of float16
    assert (by <= steps(before)[:, None] / 2 + rounding).all()
    assert np.median(by) > np.median(steps(before)) / 8
    assert vector.data.tolist() == VECTOR.tolist()


def test_the_grid_cannot_be_found_again(tmp_path):
    def lost(numbers):
        return float(np.square(dequantize(quantize(numbers, KIND), KIND) - numbers).mean())

    on_grid = dequantize(WEIGHTS, KIND)
    off_grid = dithered(tmp_path, "a.gguf", 1).tensors[0].data.astype(np.float32)
    assert lost(on_grid) < lost(off_grid) / 100


def test_a_seed_gives_the_same_file_and_another_seed_another(tmp_path):
    one, same, other = (
        dithered(tmp_path, name, seed).tensors[0].data
        for name, seed in (("a.gguf", 1), ("b.gguf", 1), ("c.gguf", 2))
    )
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert (one == same).all()
    assert (one != other).mean() > 0.9


def test_what_the_file_says_of_the_model_stays(tmp_path):
    fields = dithered(tmp_path, "a.gguf", 1).fields
    assert fields["llama.context_length"].contents() == 77
    assert fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_F16


def test_groups_have_steps_of_their_own():
    groups = np.array([[0.0, 2.0, 4.0, 4.0 + 1e-7], [0.5, 0.5, 0.75, 3.0], [1.0, 1.0, 1.0, 1.0]])
    assert steps(groups).tolist() == [2.0, 0.25, 0.0]
    by = np.abs(moved(groups, 4, np.random.default_rng(0)) - groups).max(1)
    assert 0.25 < by[0] <= 1.0
    assert 0.03 < by[1] <= 0.125
    assert by[2] == 0.0


def test_what_is_no_gguf_file_is_said(tmp_path, capsys):
    assert main([str(tmp_path / "none.gguf"), str(tmp_path / "out.gguf")]) == 2
    (tmp_path / "text.gguf").write_text("this is a text, and longer than a header has to be")
    assert main([str(tmp_path / "text.gguf"), str(tmp_path / "out.gguf")]) == 2
    assert capsys.readouterr().err.count("error: ") == 2
    assert not (tmp_path / "out.gguf").exists()
