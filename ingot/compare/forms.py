"""Spellings of the sides that a user compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ingot.artifact.pooler import DOES as READS

# What a side makes of tokens: logits of every position, or of the whole text or of each token a
# vector or scores of labels.
Task = Literal["generate", "embed", "token_embed", "classify", "token_classify"]
DOES: Mapping[str, str] = {
    "generate": "generates text",
    **{str(task): does for task, does in READS.items()},
}
OF_VECTORS: tuple[Task, ...] = ("embed", "token_embed")  # which are no distributions
HF = "hf:"
ONNX = ".onnx"
FORMS = (
    "A side is an artifact, a model directory or a model on the hub (the float32 reference), "
    "hf:MODEL_DIR (run by transformers), or an .onnx file."
)
