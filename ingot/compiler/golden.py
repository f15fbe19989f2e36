"""Golden outputs: what the float32 reference says on a handful of prompts.

For every position of every prompt the file has the most likely tokens with their log-probabilities,
and the log-probability of the token that follows. Prompts are teacher-forced, so that one wrong
token does not hide the ones after it. `ingot verify` replays them with the compiled code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule

from ingot.compiler.reference import ReadParameter, reference_logits
from ingot.errors import CompileError

GOLDEN = "golden/golden.json"  # in the artifact
TOP = 8  # tokens kept a position; the margin between the first two tells ties from faults

# The largest |log-probability| error that a compiled model may have on its golden prompts. float32
# differs from the reference only by the order of its sums. bfloat16 rounds every input of a matrix
# product to 8 bits, and float16 to 11.
TOLERANCE = {"float32": 2e-3, "bfloat16": 0.25, "float16": 0.04}

# The same if weights are quantized. The reference then has the numbers that the integers stand for,
# so the only difference is the rounding of activations to int8: up to 1 part in 254 of the largest
# magnitude in a block, which may be a whole row.
QUANTIZED_TOLERANCE = 0.5

# How much log-probabilities of the reference differ between hosts, which add in another order.
BETWEEN_HOSTS = 5e-4

# The largest window that a compile exercises, in tokens. The reference has no cache, and would take
# minutes over longer prompts.
MAX_WINDOW = 1024


def golden_prompts(
    encoded_text: Sequence[int], *, page_size: int, max_model_len: int, windows: Sequence[int]
) -> list[list[int]]:
    """Prompts that cross every boundary of the runtime, as token ids.

    Prompts of one token, of a few, of exactly a page, and of more than two pages. If attention has
    windows of at most MAX_WINDOW tokens, also one that is longer than the widest of these.
    """
    window = max((w for w in windows if w <= MAX_WINDOW), default=0)
    lengths = {1, 5, page_size, 2 * page_size + 3}
    if window:
        lengths.add(window + page_size + 1)
    fitting = sorted({min(length, max_model_len) for length in lengths})
    return [[encoded_text[i % len(encoded_text)] for i in range(length)] for length in fitting]


def golden_outputs(
    gm: GraphModule,
    read: ReadParameter,
    prompts: Sequence[Sequence[int]],
    *,
    tolerance: float,
) -> dict[str, Any]:
    """The content of `golden/golden.json` for these prompts.

    `read` gives the weights of the artifact, in integers where they are stored so.

    Raises:
        CompileError: the outputs are not finite.
    """
    logits = reference_logits(gm, read, prompts)
    if not all(bool(rows.isfinite().all()) for rows in logits):
        raise CompileError(
            "the outputs of the float32 reference are not finite",
            hint="Some weights are probably too large. Check the model in float32.",
        )
    return {
        "tolerance": tolerance,
        "prompts": [
            {"tokens": list(tokens), "positions": _positions(tokens, rows)}
            for tokens, rows in zip(prompts, logits, strict=True)
        ],
    }


def outputs_agree(one: bytes, other: bytes) -> bool:
    """Whether two files of golden outputs are of the same model and the same limits."""
    if one == other:
        return True
    (prompts, values), (others, other_values) = map(_content, map(json.loads, (one, other)))
    return (
        prompts == others
        and len(values) == len(other_values)
        and np.allclose(values, other_values, rtol=0, atol=BETWEEN_HOSTS)
    )


def _content(golden: dict[str, Any]) -> tuple[list[Any], list[float]]:
    """The tolerance and the prompts, and all log-probabilities in order."""
    positions = [each for prompt in golden["prompts"] for each in prompt["positions"]]
    values = [value for each in positions for _, value in each["top"]]
    values += [each["next_logprob"] or 0.0 for each in positions]
    return [golden["tolerance"], *(prompt["tokens"] for prompt in golden["prompts"])], values


def _positions(tokens: Sequence[int], logits: torch.Tensor) -> list[dict[str, Any]]:
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    top = logprobs.topk(min(TOP, logits.shape[-1]), dim=-1)
    following = [*tokens[1:], None]
    return [
        {
            "top": [[int(t), _rounded(p)] for t, p in zip(ids, values, strict=True)],
            "next_logprob": None if token is None else _rounded(logprobs[i, token]),
        }
        for i, (ids, values, token) in enumerate(
            zip(top.indices.tolist(), top.values.tolist(), following, strict=True)
        )
    ]


def _rounded(value: float | torch.Tensor) -> float:
    return round(float(value), 6)
