"""Spellings of the sides that a user compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ingot.artifact.pooler import DOES as READS
from ingot.artifact.pooler import Pooler

# What a side makes of tokens: logits of every position, or of the whole text a vector, one for each
# token, or scores of labels.
Task = Literal["generate", "embed", "token_embed", "classify"]
DOES: Mapping[str, str] = {
    "generate": "generates text",
    **{str(task): does for task, does in READS.items()},
}


def task_of(pooler: Pooler) -> Task:
    """What is compared of a model of whole texts: scores of tokens like vectors of tokens."""
    return "token_embed" if pooler.task == "token_classify" else pooler.task


OF_VECTORS: tuple[Task, ...] = ("embed", "token_embed")  # which are no distributions
HF = "hf:"
ONNX = ".onnx"
FORMS = (
    "A side is an artifact, a model directory or a model on the hub (the float32 reference), "
    "hf:MODEL_DIR (run by transformers), or an .onnx file."
)
