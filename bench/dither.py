"""Makes a float16 GGUF whose numbers lie on no grid out of a quantized one.

    python -m bench.dither QUANTIZED.gguf OUT.gguf [--seed N]

The numbers of a quantized file lie on a grid, and a format with the same grid finds it again: Q4_1
loses nothing of a Q4_1 file, and every other 4-bit format looks bad beside it. Here each weight is
moved by a seeded uniform draw within half a step of its own group, where it may have lain before it
was rounded. So all formats start alike. Vectors stay as they are.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize

Array = np.ndarray
TYPES = gguf.GGMLQuantizationType
FLOATS = (TYPES.F32, TYPES.F16, TYPES.BF16)
# Columns that share a scale, where these are fewer than a block has.
GROUPS = {TYPES.Q2_K: 16, TYPES.Q3_K: 16, TYPES.Q4_K: 32, TYPES.Q5_K: 32, TYPES.Q6_K: 16}
# What the new file says of itself.
OWN = ("general.architecture", "general.file_type", "general.quantization_version")
SAME = 1e-6  # of the largest number of a group: numbers that are as near were one before rounding


def steps(groups: Array) -> Array:
    """The step of each group [N, G]: the least gap between numbers that differ, or else 0."""
    gaps = np.diff(np.sort(groups, axis=1), axis=1)
    real = gaps > SAME * np.abs(groups).max(1, keepdims=True)
    least = np.where(real, gaps, np.inf).min(1)
    return np.where(np.isfinite(least), least, 0.0)


def moved(numbers: Array, group: int, random: np.random.Generator) -> Array:
    """Numbers, each moved within half a step of its group."""
    groups = numbers.reshape(-1, group)
    draws = random.uniform(-0.5, 0.5, groups.shape)
    return (groups + steps(groups)[:, None] * draws).reshape(numbers.shape).astype(np.float32)


def dither(source: Path, out: Path, seed: int = 0) -> None:
    """Writes the file."""
    reader, random = gguf.GGUFReader(source), np.random.default_rng(seed)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in OWN:
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), field.types[0])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        kind = tensor.tensor_type
        numbers = dequantize(tensor.data, kind).reshape(shape).astype(np.float32)
        if kind not in FLOATS:
            group = GROUPS.get(kind, gguf.GGML_QUANT_SIZES[kind][0])
            numbers = moved(numbers, group, random)
        writer.add_tensor(tensor.name, numbers.astype(np.float16) if len(shape) > 1 else numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(argv: list[str]) -> int:
    """Writes the file; 2 for a file that is no GGUF."""
    parser = argparse.ArgumentParser(prog="python -m bench.dither", description=__doc__)
    parser.add_argument("quantized", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        dither(args.quantized, args.out, args.seed)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
