"""Are logits the same bits in every way to compute them, on the device?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

from bench.gpu.results import Faults, Values
from bench.gpu.setting import Setting
from ingot.runtime.arrays import Float32
from ingot.runtime.devices.cuda.executor import CudaExecutor
from ingot.runtime.llm import LLM

TOKENS = 130
CHUNKS = (1, 3, 7, 16, 17, 64)
BESIDE = 7  # other sequences of the same step


@contextmanager
def plain_launches() -> Iterator[None]:
    """Launches decodes one by one, without graphs and without padding."""
    with patch.object(CudaExecutor, "_bucket", lambda self, inputs: 0):
        yield


def ways(
    setting: Setting, name: str, *, tokens: int = TOKENS, chunks: Sequence[int] = CHUNKS
) -> None:
    """Raises RuntimeError that names the ways whose logits differ from one long step."""
    with setting.llm(name) as llm:
        ids = prompt(llm, tokens)
        whole = llm.logits(ids)
        if not np.isfinite(whole).all():
            raise RuntimeError(f"{int((~np.isfinite(whole)).sum())} logits are not finite")
        faults = Faults()
        for way, compute in _ways(llm, ids, chunks):
            with faults.of(way):
                found = difference(whole, compute())
                setting.report.note(ways={way: found or "equal"})
                faults.add(way, found)
    faults.raise_found()


def _ways(
    llm: LLM, ids: list[int], chunks: Sequence[int]
) -> Iterator[tuple[str, Callable[[], Float32]]]:
    yield "again", lambda: llm.logits(ids)
    for size in chunks:
        yield f"chunks of {size}", lambda size=size: llm.logits(ids, chunk_tokens=size)  # type: ignore[misc]
    yield "beside others", lambda: beside(llm, ids)
    yield "token by token, without graphs", lambda: without_graphs(llm, ids)


def beside(llm: LLM, ids: list[int]) -> Float32:
    """Token by token, in steps of several sequences that are shorter."""
    others = [ids[: max(1, len(ids) - n)] for n in range(1, 1 + BESIDE)]
    return llm.batch_logits([ids, *others], chunk_tokens=1)[0]


def without_graphs(llm: LLM, ids: list[int]) -> Float32:
    with plain_launches():
        return llm.logits(ids, chunk_tokens=1)


def prompt(llm: LLM, count: int) -> list[int]:
    """Random tokens, as many as the model has room for."""
    model = llm.artifact.manifest.model
    count = min(count, llm.max_model_len)
    tokens: list[int] = np.random.default_rng(1).integers(0, model.vocab_size, count).tolist()
    return tokens


def difference(expected: Float32, found: Float32) -> Values:
    """Where logits differ in their bits, and by how much; empty where they do not."""
    if expected.tobytes() == found.tobytes():
        return {}
    unequal = (expected != found).any(axis=1)
    return {
        "rows": int(unequal.sum()),
        "first row": int(unequal.argmax()),
        "largest": float(np.abs(expected - found).max()),
        "other tokens": int((expected.argmax(axis=1) != found.argmax(axis=1)).sum()),
    }
