"""Measures what quantization costs the bundled model: perplexity and divergence from float32.

    python -m bench.quality [--text FILE] [--max-tokens N] [--json FILE]

The references of the quantized ops run in PyTorch, activations in int8 included. Perplexity is that
of the last tenth of a text, in windows of 512 tokens stepped by half, as for the model's card; the
text is the one that the model was trained on, which is not part of the project, and its first
nine tenths calibrate. The Kullback-Leibler divergence from the float32 reference, in nats a token,
is taken over sequences that were sampled from the model (`golden/shakespeare/sampled.json`);
without a text, the first of them calibrate and the others are measured. Exits with 1 where a
limit is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.artifact.formats import Storage
from ingot.compiler.export import export
from ingot.compiler.quantization.choose import choose_storage
from ingot.compiler.quantization.graph_matrices import matrices_in
from ingot.compiler.quantization.quantize import quantize_weights
from ingot.compiler.quantization.sequences import calibration_sequences, sample_sequences
from ingot.compiler.quantization.storage import storage_in
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.compiler.reference import Interpreter, reference_logits
from ingot.compiler.tokenizer import load_tokenizer
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.model_dir import ModelDir
from ingot.ops import OPS
from ingot.ops.scaled import round_to_int8

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "golden" / "models" / "shakespeare"
SAMPLED = ROOT / "golden" / "shakespeare" / "sampled.json"
NUM_CALIBRATING = 12  # of the sampled sequences
WINDOW = 512
WINDOWS_AT_ONCE = 8

ATTENTION = OPS["attention"].overload

Sequences = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Case:
    """A way to quantize, and the increase of perplexity that it may cost, in per cent."""

    name: str
    storage: Storage | None
    calibrated: bool
    limit: float
    int8_cache: bool = False


CASES = (
    Case("int8 keys and values", None, False, 0.5, int8_cache=True),
    Case("int8 channel", Storage(8, 0), False, 0.5),
    Case("int8 g32", Storage(8, 32), False, 0.5),
    Case("int8 g128", Storage(8, 128), False, 0.5),
    Case("int6 g32", storage_in("int6", 32), False, 1.0),
    Case("int5 g32", storage_in("int5", 32), False, 1.5),
    Case("int4 g32", storage_in("int4", 32), False, 2.5),
    Case("int4 g32, calibrated", storage_in("int4", 32), True, 2.5),
    Case("int4 g128", storage_in("int4", 128), False, math.inf),
    Case("int4 g128, calibrated", storage_in("int4", 128), True, math.inf),
)


@dataclass(frozen=True, slots=True)
class Quality:
    """A row of the table; perplexity is None where there was no text."""

    name: str
    kl: float
    perplexity: float | None
    increase: float | None
    limit: float

    @property
    def ok(self) -> bool:
        return self.increase is None or self.increase <= self.limit


class Bench:
    """The bundled model, and what it says in float32."""

    def __init__(self, text: Path | None, max_tokens: int) -> None:
        config = registry.load_config(ModelDir.open(MODEL))
        module = registry.build(config, max_model_len=1024)
        self.gm: GraphModule = export(module, config)
        self.checkpoint = Checkpoint.open(ModelDir.open(MODEL), config, module)
        self.tokenizer = load_tokenizer(ModelDir.open(MODEL), config.vocab_size)
        sampled = json.loads(SAMPLED.read_text())
        self.calibration: Sequences = sampled[:NUM_CALIBRATING]
        self.held_out: Sequences = sampled[NUM_CALIBRATING:]
        vocab_size = config.vocab_size
        self.sample = sample_sequences(self.tokenizer, vocab_size, max_model_len=1024)
        self.ids: list[int] = []
        if text is not None:
            self._read_text(text.read_text(encoding="utf-8"), max_tokens)
        self.reference = reference_logits(self.gm, self.checkpoint.read, self.held_out)

    def _read_text(self, text: str, max_tokens: int) -> None:
        split = len(text) * 9 // 10
        self.ids = self.tokenizer.encode(text[split:]).ids[:max_tokens]
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write(text[:split])
            file.flush()
            self.calibration = calibration_sequences(
                Path(file.name), self.tokenizer, max_model_len=1024
            )

    def measure(self, case: Case, base: float | None) -> Quality:
        """Quantizes the model that way and runs it; `base` is the perplexity in float32."""
        storage = choose_storage(matrices_in(self.gm), case.storage, (), "bfloat16")
        with QuantizedWeights(self.checkpoint.read, ROOT) as weights:
            sequences = self.calibration if case.calibrated else ()
            quantize_weights(self.gm, weights, storage, sequences, sample=self.sample)
            store = Stored(weights, storage, case.int8_cache)
            logits = quantized_logits(self.gm, store, self.held_out)
            kl = divergence(self.reference, logits)
            if base is None:
                return Quality(case.name, kl, None, None, case.limit)
            ppl = perplexity(self.ids, lambda rows: quantized_logits(self.gm, store, rows))
        return Quality(case.name, kl, ppl, 100 * (ppl / base - 1), case.limit)

    def base(self) -> float | None:
        """Perplexity in float32."""
        if not self.ids:
            return None
        return perplexity(
            self.ids, lambda rows: reference_logits(self.gm, self.checkpoint.read, rows)
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """What a case stores as integers."""

    weights: QuantizedWeights
    storage: dict[str, Storage]
    int8_cache: bool


class QuantizedInterpreter(Interpreter):
    """Runs the exported graph with the references of the quantized ops in place of linears, and
    keys and values as an int8 cache gives them back."""

    def __init__(self, gm: GraphModule, store: Stored, prompts: Sequences) -> None:
        super().__init__(gm, store.weights.read, prompts)
        self.weights, self.storage = store.weights, store.storage
        self.int8_cache = store.int8_cache

    def _call(self, node: Node) -> list[Any]:
        if self.int8_cache and node.target is ATTENTION:
            for cached in node.args[1:3]:
                assert isinstance(cached, Node)
                self.values[cached] = [through_int8(value) for value in self.values[cached]]
        return super()._call(node)

    def _linear(self, node: Node) -> list[Tensor]:
        x, weight, *rest = node.args
        name = str(weight.target)
        if name not in self.storage:
            return super()._linear(node)
        bias = self._parameter(rest[0]) if rest and isinstance(rest[0], Node) else None
        (rows,) = self.values[x]
        rounded = round_to_int8(rows, self.storage[name].of(rows.shape[-1]).block)
        return [OPS["linear"].reference(rounded, self.weights.matrix(name), bias)]


def through_int8(heads: Tensor) -> Tensor:
    """Keys or values [..., D] as the cache stores them, a scale for every head."""
    return round_to_int8(heads, heads.shape[-1]).dequantize()


def quantized_logits(gm: GraphModule, store: Stored, prompts: Sequences) -> list[Tensor]:
    """Logits [T, V] of every position of every prompt, by the quantized ops."""
    (rows,) = QuantizedInterpreter(gm, store, prompts).run()
    return [*rows[0].split([len(prompt) for prompt in prompts])]


def divergence(reference: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """Mean Kullback-Leibler divergence of the distributions, in nats a token."""
    parts = [
        torch.nn.functional.kl_div(
            torch.log_softmax(g.double(), -1),
            torch.log_softmax(r.double(), -1),
            reduction="sum",
            log_target=True,
        )
        for r, g in zip(reference, got, strict=True)
    ]
    return float(sum(parts)) / sum(len(r) for r in reference)


def perplexity(ids: Sequence[int], run: Any) -> float:
    """Of a text, each token seen with at least half a window before it."""
    stride, total = WINDOW // 2, 0.0
    windows = [
        (ids[max(0, start - stride) : start + stride + 1], min(stride, len(ids) - 1 - start))
        for start in range(0, len(ids) - 1, stride)
    ]
    for first in range(0, len(windows), WINDOWS_AT_ONCE):
        batch = windows[first : first + WINDOWS_AT_ONCE]
        for (tokens, scored), logits in zip(batch, run([w[:-1] for w, _ in batch]), strict=True):
            target = torch.tensor(tokens[-scored:])
            total += float(
                torch.nn.functional.cross_entropy(logits[-scored:], target, reduction="sum")
            )
    return math.exp(total / (len(ids) - 1))


def measure(bench: Bench, cases: Sequence[Case] = CASES) -> Iterator[Quality]:
    """The float32 reference, then every case."""
    base = bench.base()
    yield Quality("float32", 0.0, base, None if base is None else 0.0, 0.0)
    for case in cases:
        yield bench.measure(case, base)


def line(row: Quality) -> str:
    """A row of the table."""
    text = f"{row.name:<24}{row.kl:>10.6f} nats"
    if row.perplexity is not None and row.increase is not None:
        text += f"{row.perplexity:>10.4f}{row.increase:>+9.3f} %"
        text += f"   <= {row.limit:g} %" if 0 < row.limit < math.inf else ""
    return text if row.ok else f"{text}  MISSED"


def main() -> int:
    """Prints the table; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality")
    parser.add_argument("--text", type=Path, help="text; its last tenth is held out")
    parser.add_argument("--max-tokens", type=int, default=10**9, help="tokens of it to score")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    bench, rows = Bench(args.text, args.max_tokens), []
    for row in measure(bench):
        print(line(row), flush=True)
        rows.append(row)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
