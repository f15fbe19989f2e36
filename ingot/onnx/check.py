"""Runs what an export wrote in onnxruntime, and holds it against the float32 reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from torch.fx import GraphModule
from torch.nn import functional

from ingot.artifact.pooler import Pooler
from ingot.compiler.golden import MAX_WINDOW
from ingot.compiler.reference import Interpreter, ReadParameter
from ingot.errors import ExportError, VerificationError
from ingot.models.config import ModelConfig
from ingot.onnx.encoder import BEFORE, MASK, TYPES

# The largest relative error of logits, on the numbers that the file holds. Arithmetic in float32
# differs by the order of its sums; in float16, by a rounding of every product (docs/design.md).
ALLOWED = {"float32": 1e-4, "float16": 4e-3}
LENGTHS = (1, 6, 33)
NEW = 2  # the last tokens of a prompt, which come one by one
ERRORS_ALONE = 3  # log level of onnxruntime

Numbers = NDArray[np.float32]  # logits [T, V] of a prompt, or what a text becomes [W]


def random_prompts(config: ModelConfig, longest: int) -> list[list[int]]:
    """Prompts of random tokens, among them one that is longer than the widest window."""
    window = max((w for w in config.windows if w <= MAX_WINDOW), default=0)
    lengths = sorted({min(n, longest) for n in (*LENGTHS, *((window + 9,) if window else ()))})
    rng = np.random.default_rng(0)
    return [rng.integers(config.vocab_size, size=length).tolist() for length in lengths]


def check_file(
    file: Path, prompts: Sequence[Sequence[int]], expected: Sequence[Numbers], allowed: float
) -> float:
    """The largest relative error of what onnxruntime gives for a prompt.

    Raises:
        ExportError: `onnx.checker` or onnxruntime refuses the file.
        VerificationError: the error is larger than allowed.
    """
    try:
        onnx.checker.check_model(file)
        runner = Runner(file)
        got = [each for batch in batches(prompts) for each in runner.run(batch)]
    except (onnx.checker.ValidationError, *RUNTIME_ERRORS) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise ExportError(
            f"{file.name} does not run: {first}",
            hint="Other operators may: give --opset 18, or another --dtype.",
        ) from error
    # Not Python's max, which forgets a NaN that is not the first.
    largest = float(np.max([*map(relative_error, got, expected)]))
    if not largest <= allowed:  # nor is one that is no number
        raise VerificationError(
            f"{file.name} differs from the float32 reference by {largest:.1e} "
            f"(allowed: {allowed:g})",
            hint="Nothing was written. Please report it with the model's config.json.",
        )
    return largest


def reference_rows(
    graph: GraphModule, read: ReadParameter, texts: Sequence[Sequence[int]], pooler: Pooler
) -> list[Numbers]:
    """What the float32 reference makes of whole texts: vectors or logits of labels, of them or of
    their tokens."""
    run = Interpreter(graph, read, texts)
    if pooler.types > 1:
        sorts = [int(i >= half(text)) for text in texts for i in range(len(text))]
        run.positions = run.positions + torch.tensor([sorts]) * pooler.type_stride
    (found,) = run.run()
    rows = functional.normalize(found[0]) if pooler.normalize else found[0]
    if not pooler.pooling:
        return [each.numpy() for each in rows.split([len(text) for text in texts])]
    return [*rows.numpy()]


def half(text: Sequence[int]) -> int:
    """Where the second half of a text begins, whose tokens are of another sort in a check."""
    return (len(text) + 1) // 2


def relative_error(got: Numbers, expected: Numbers) -> float:
    """Relative error over all numbers of a prompt."""
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def batches(prompts: Sequence[Sequence[int]]) -> list[Sequence[Sequence[int]]]:
    """Prompts that run together: short ones, which are padded, and each long one alone."""
    short = [prompt for prompt in prompts if len(prompt) <= max(LENGTHS)]
    return [short, *([prompt] for prompt in prompts if len(prompt) > max(LENGTHS))]


class Runner:
    """A file in onnxruntime on the CPU."""

    def __init__(self, file: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS_ALONE
        # Threads that wait in a loop would take the processors from the other side.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(str(file), options, providers=providers)
        inputs = self.session.get_inputs()
        self.names = [each.name for each in inputs]
        self.past = [each for each in inputs if each.name.startswith("past")]

    def run(self, prompts: Sequence[Sequence[int]]) -> list[Numbers]:
        """Logits [T, V] of each prompt, or what each text becomes. They run as one batch where the
        file takes a mask."""
        if self.past:
            return self._padded(prompts)
        if MASK in self.names:
            return self._texts(prompts)
        return [self._whole(prompt) for prompt in prompts]

    def _texts(self, texts: Sequence[Sequence[int]]) -> list[Numbers]:
        """Whole texts that are padded on the right; their second halves are of another sort."""
        longest = max(map(len, texts))
        shapes = {name: (len(texts), longest) for name in self.names if name != BEFORE}
        given = {name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()}
        for row, text in enumerate(texts):
            given["input_ids"][row, : len(text)], given[MASK][row, : len(text)] = text, 1
            if TYPES in given:
                given[TYPES][row, half(text) : len(text)] = 1
        none = {BEFORE: np.zeros(len(texts), dtype=np.int64)} if BEFORE in self.names else {}
        found = self.session.run(None, given | none)[-1]
        of_tokens = found.ndim == 3
        return [row[: len(t)] if of_tokens else row for row, t in zip(found, texts, strict=True)]

    def _whole(self, prompt: Sequence[int]) -> Numbers:
        """A prompt beside its reverse: what one gives must not depend on the other."""
        ids = np.array([prompt, prompt[::-1]], dtype=np.int64)
        positions = np.broadcast_to(np.arange(len(prompt), dtype=np.int64), ids.shape)
        logits, *_ = self.session.run(
            ["logits"], {"input_ids": ids, "position_ids": positions.copy()}
        )
        return logits[0]  # type: ignore[no-any-return]

    def _padded(self, prompts: Sequence[Sequence[int]]) -> list[Numbers]:
        """Prompts that are padded on the left; the last tokens come one by one."""
        longest = max(map(len, prompts))
        ids, mask = (np.zeros((len(prompts), longest), dtype=np.int64) for _ in range(2))
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = prompt
            mask[row, longest - len(prompt) :] = 1
        positions = np.maximum(mask.cumsum(1) - 1, 0)
        first = max(longest - NEW, 1)
        past = self._nothing(len(prompts))
        parts = []
        for start, end in zip((0, *range(first, longest)), range(first, longest + 1), strict=True):
            given = {
                "input_ids": ids[:, start:end],
                "attention_mask": mask[:, :end],
                "position_ids": positions[:, start:end],
            }
            logits, *present = self.session.run(None, given | past)
            past = dict(zip(past, present, strict=True))
            parts.append(logits)
        whole = np.concatenate(parts, axis=1)
        return [rows[longest - len(p) :] for rows, p in zip(whole, prompts, strict=True)]

    def _nothing(self, batch: int) -> dict[str, Any]:
        """Keys and values of no token, and records of zeros."""
        dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        return {
            each.name: np.zeros(
                (batch, *(n if isinstance(n, int) else 0 for n in each.shape[1:])),
                dtypes[each.type],
            )
            for each in self.past
        }


_state = onnxruntime.capi.onnxruntime_pybind11_state
RUNTIME_ERRORS = (
    _state.Fail, _state.InvalidArgument, _state.InvalidGraph, _state.NotImplemented,
    _state.RuntimeException,
)  # fmt: skip
