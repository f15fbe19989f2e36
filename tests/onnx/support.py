"""Exports of tiny random models, and onnxruntime as any user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime

from ingot.onnx import export_onnx
from tests.support.made_once import made_once
from tests.support.text_models import KINDS, saved, with_modules
from tests.support.tiny_models import save_random

CACHED, PLAIN = "model.onnx", "plain.onnx"


def exported(name: str, checkpoint: str = "float32", **options: object) -> tuple[Path, Path]:
    """The model directory of a case, and the folder that it is exported to, once a test run."""
    key = "-".join((name, checkpoint, *(f"{k}-{v}" for k, v in sorted(options.items()))))

    def make(place: Path) -> None:
        save_random(name, place / "model", checkpoint, tokenizer=True)
        export_onnx(place / "model", place / "onnx", **options)

    place = made_once(f"onnx-{key}", make)
    return place / "model", place / "onnx"


def exported_texts(kind: str, pooling: str = "mean", opset: int = 23) -> Path:
    """The folder that a model which makes vectors is exported to, once a test run."""

    def make(place: Path) -> None:
        folder = with_modules(saved(KINDS[kind].build("Model"), place / "model"), pooling)
        (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<pad>"}))
        report = export_onnx(folder, place / "onnx", opset=opset)
        assert report.errors["model.onnx"] < 2e-5

    return made_once(f"onnx-texts-{kind}-{pooling}-{opset}", make) / "onnx"


def session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def plain_logits(file: Path, tokens: list[int]) -> np.ndarray:
    """Logits [T, V] of the file with tokens and positions alone."""
    positions = np.arange(len(tokens))[None]
    given = {"input_ids": np.array([tokens]), "position_ids": positions}
    return session(file).run(["logits"], given)[0][0]


class Cached:
    """The file with keys and values, over a batch that is padded on the left."""

    def __init__(self, file: Path, batch: int = 1) -> None:
        self.session = session(file)
        types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        self.past = {
            each.name: np.zeros((batch, each.shape[1], 0, each.shape[3]), types[each.type])
            for each in self.session.get_inputs()
            if each.name.startswith("past_key_values.")
        }
        self.mask = np.zeros((batch, 0), np.int64)

    def run(self, ids: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Logits [B, T, V] of the next tokens."""
        new = np.ones_like(ids) if mask is None else mask
        self.mask = np.concatenate((self.mask, new), axis=1)
        positions = np.maximum(self.mask.cumsum(1) - 1, 0)[:, -ids.shape[1] :]
        given = {"input_ids": ids, "attention_mask": self.mask, "position_ids": positions}
        logits, *present = self.session.run(None, given | self.past)
        self.past = dict(zip(self.past, present, strict=True))
        return logits


def cached_logits(file: Path, tokens: list[int], chunk: int) -> np.ndarray:
    """Logits [T, V] of a sequence that comes in chunks."""
    model = Cached(file)
    parts = [tokens[i : i + chunk] for i in range(0, len(tokens), chunk)]
    return np.concatenate([model.run(np.array([part]))[0] for part in parts])


def greedy(file: Path, prompt: list[int], count: int) -> list[int]:
    """The most likely tokens after a prompt."""
    model, tokens = Cached(file), list(prompt)
    new = tokens
    for _ in range(count):
        new = [int(model.run(np.array([new]))[0, -1].argmax())]
        tokens += new
    return tokens[-count:]
