"""Runs what an export wrote in onnxruntime, and holds it against the float32 reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from ingot.compiler.golden import MAX_WINDOW
from ingot.errors import ExportError, VerificationError
from ingot.models.config import ModelConfig

# The largest relative error of logits, on the numbers that the file holds. Arithmetic in float32
# differs by the order of its sums; in float16, by a rounding of every product (docs/design.md).
ALLOWED = {"float32": 1e-4, "float16": 4e-3}
LENGTHS = (1, 6, 33)
NEW = 2  # the last tokens of a prompt, which come one by one
ERRORS_ALONE = 3  # log level of onnxruntime

Logits = NDArray[np.float32]


def random_prompts(config: ModelConfig, longest: int) -> list[list[int]]:
    """Prompts of random tokens, among them one that is longer than the widest window."""
    window = max((w for w in config.windows if w <= MAX_WINDOW), default=0)
    lengths = sorted({min(n, longest) for n in (*LENGTHS, *((window + 9,) if window else ()))})
    rng = np.random.default_rng(0)
    return [rng.integers(config.vocab_size, size=length).tolist() for length in lengths]


def check_file(
    file: Path, prompts: Sequence[Sequence[int]], expected: Sequence[Logits], allowed: float
) -> float:
    """The largest relative error of a prompt's logits in onnxruntime.

    Raises:
        ExportError: `onnx.checker` or onnxruntime refuses the file.
        VerificationError: the error is larger than allowed.
    """
    try:
        onnx.checker.check_model(file)
        runner = Runner(file)
        got = [logits for batch in batches(prompts) for logits in runner.logits(batch)]
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


def relative_error(got: Logits, expected: Logits) -> float:
    """Relative error over all logits of a prompt."""
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
        self.past = [each for each in self.session.get_inputs() if each.name.startswith("past")]

    def logits(self, prompts: Sequence[Sequence[int]]) -> list[Logits]:
        """Logits [T, V] of each prompt, which run as one batch where the file takes a mask."""
        if self.past:
            return self._padded(prompts)
        return [self._whole(prompt) for prompt in prompts]

    def _whole(self, prompt: Sequence[int]) -> Logits:
        """A prompt beside its reverse: what one gives must not depend on the other."""
        ids = np.array([prompt, prompt[::-1]], dtype=np.int64)
        positions = np.broadcast_to(np.arange(len(prompt), dtype=np.int64), ids.shape)
        logits, *_ = self.session.run(
            ["logits"], {"input_ids": ids, "position_ids": positions.copy()}
        )
        return logits[0]  # type: ignore[no-any-return]

    def _padded(self, prompts: Sequence[Sequence[int]]) -> list[Logits]:
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
        """Keys and values of no token."""
        dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        return {
            each.name: np.zeros((batch, each.shape[1], 0, each.shape[3]), dtypes[each.type])
            for each in self.past
        }


_state = onnxruntime.capi.onnxruntime_pybind11_state
RUNTIME_ERRORS = (
    _state.Fail, _state.InvalidArgument, _state.InvalidGraph, _state.NotImplemented,
    _state.RuntimeException,
)  # fmt: skip
