"""Makes vectors of texts by one runtime, a request a line: {"tokens": [[...], ...]} in, seconds and
the first numbers of the first vector out.

    python run_texts.py RUNTIME MODEL [DTYPE]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

Encode = Callable[[Sequence[Sequence[int]]], np.ndarray]


def ingot(path: str, dtype: str) -> Encode:
    import ingot

    model = ingot.Embedder(path)
    return lambda texts: model.encode(texts, normalize_embeddings=True)


def padded(texts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and mask, [texts, longest], as runtimes take them that know no other way."""
    longest = max(map(len, texts))
    ids, mask = (np.zeros((len(texts), longest), np.int64) for _ in range(2))
    for i, text in enumerate(texts):
        ids[i, : len(text)], mask[i, : len(text)] = text, 1
    return ids, mask


def pooled(rows: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean of each text, of length 1."""
    means = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def pytorch(path: str, dtype: str) -> Encode:
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, dtype=getattr(torch, dtype)).eval()

    def encode(texts: Sequence[Sequence[int]]) -> np.ndarray:
        ids, mask = padded(texts)
        with torch.inference_mode():
            given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            rows = model(**given).last_hidden_state.float().numpy()
        return pooled(rows, mask)

    return encode


def onnxruntime(path: str, dtype: str) -> Encode:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda texts: _by_onnx(texts, lambda given: session.run(None, given)[0])


def openvino(path: str, dtype: str) -> Encode:
    import openvino

    hint = {"INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype]}
    model = openvino.Core().compile_model(path, "CPU", hint)
    return lambda texts: _by_onnx(texts, lambda given: model(given)[0])


def _by_onnx(texts: Sequence[Sequence[int]], run: Callable[[dict], np.ndarray]) -> np.ndarray:
    ids, mask = padded(texts)
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return pooled(run(given), mask)


RUNTIMES = {"ingot": ingot, "pytorch": pytorch, "onnxruntime": onnxruntime, "openvino": openvino}


def main() -> None:
    runtime, path, *dtype = sys.argv[1:]
    encode = RUNTIMES[runtime](path, dtype[0] if dtype else "float32")
    print("ready", flush=True)
    for line in sys.stdin:
        texts = json.loads(line)["tokens"]
        began = time.perf_counter()
        vectors = encode(texts)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "vector": vectors[0][:8].tolist()}), flush=True)


main()
