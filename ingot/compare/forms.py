"""Spellings of the sides that a user compares."""

from __future__ import annotations

HF = "hf:"
ONNX = ".onnx"
FORMS = (
    "A side is an artifact, a model directory or a model on the hub (the float32 reference), "
    "hf:MODEL_DIR (run by transformers), or an .onnx file."
)
