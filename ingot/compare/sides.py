"""Sides of a comparison: anything that gives the logits of a sequence of tokens, or what a whole
text becomes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ingot.artifact.tree import is_artifact
from ingot.compare.forms import FORMS, HF, ONNX, Task
from ingot.errors import UsageError
from ingot.hub.names import hub_name, model_path
from ingot.runtime.arrays import Float32

if TYPE_CHECKING:
    from ingot.runtime.tokenizer import Tokenizer


class Side(Protocol):
    """A model that can be compared, opened.

    Attributes:
        name: as the user wrote it.
        what: what runs, in a few words, such as "artifact, cpu:portable, bfloat16".
        task: what it makes of tokens.
        vocab_size: how many tokens it knows.
        max_model_len: the most tokens of a sequence; None where nothing says it.
        token_cost: what another greedy token takes: 0 a step with a cache, 1 a pass over weights
            that lie in memory, 2 a pass over those of a checkpoint.
        eos_token_ids: tokens that end a text; empty where nothing names them.
        tokenizer: None where there is none.
    """

    name: str
    what: str
    task: Task
    vocab_size: int
    max_model_len: int | None
    token_cost: int
    eos_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None

    def logits(self, tokens: Sequence[int]) -> Float32:
        """Logits [T, V] of every position; of whole texts the vector [1, W], of length 1 if the
        model says so, or the scores [1, labels]. Raises IngotError."""
        ...

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The `count` likeliest tokens after those, one after the other, where it generates."""
        ...

    def close(self) -> None:
        """Frees everything; a second call does nothing."""
        ...


def open_side(
    text: str,
    *,
    target: str | None = None,
    max_model_len: int | None = None,
    revision: str | None = None,
    dtype: str = "float32",
) -> Side:
    """Opens a side.

    Args:
        text: an artifact, a model directory, a name on the hub, "hf:" and one of the latter two,
            or a file that ends in ".onnx".
        target: which target of an artifact to run; None: the best for this host.
        max_model_len: the longest sequence that a model directory is built for, which fixes some
            rotary frequencies; None: its own maximum.
        revision: of a model on the hub.
        dtype: what transformers computes in.

    Raises:
        UsageError: nothing that can be compared, a missing package, or an unknown target.
        ArtifactError, ModelDirError, ResourceError: what stands there cannot be run.
    """
    check_there(text)
    if text.startswith(HF):
        from ingot.compare.transformers_side import TransformersSide

        return TransformersSide(text, _local(text.removeprefix(HF), revision), dtype)
    if text.endswith(ONNX):
        from ingot.compare.onnx_side import OnnxSide

        return OnnxSide(text, Path(text))
    path = _local(text, revision)
    if is_artifact(path):
        from ingot.compare.artifact_side import ArtifactSide

        return ArtifactSide(text, path, target)
    from ingot.compare.reference_side import ReferenceSide

    return ReferenceSide(text, path, max_model_len)


def check_there(text: str) -> None:
    """Raises UsageError for a side that is neither a path that exists nor a name on the hub."""
    path = text.removeprefix(HF)
    named = hub_name(path) and not path.endswith(ONNX)
    if not named and not os.path.lexists(path):
        raise UsageError(f"{path or 'an empty name'} does not exist", hint=FORMS)


def _local(text: str, revision: str | None) -> Path:
    """The folder of a model."""
    return model_path(text, revision) if hub_name(text) else Path(text)
