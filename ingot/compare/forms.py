"""Spellings of the sides that a user compares."""

from __future__ import annotations

from typing import Literal

# What a side makes of tokens: logits of every position, or of the whole text a vector or scores of
# labels.
Task = Literal["generate", "embed", "classify"]
DOES: dict[Task, str] = {
    "generate": "generates text",
    "embed": "makes vectors of texts",
    "classify": "gives texts scores of labels",
}
HF = "hf:"
ONNX = ".onnx"
FORMS = (
    "A side is an artifact, a model directory or a model on the hub (the float32 reference), "
    "hf:MODEL_DIR (run by transformers), or an .onnx file."
)
