"""What `import ingot` offers for whole texts: models from an artifact, their directory or the hub.

It imports nothing of what generates, so that a process has its first vector soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingot.artifact.reader import Artifact
from ingot.artifact.tree import is_artifact
from ingot.opening import compiled_path, local, opened, options_for_device, options_of, path_of
from ingot.runtime import text_model


class _Opening(text_model.TextModel):
    """Opens a `TextModel` from wherever its artifact is or can be made."""

    def __init__(
        self,
        model: str | Path | Artifact,
        *,
        device: str = "auto",
        revision: str | None = None,
        compile_options: Mapping[str, Any] | None = None,
        truncate: bool = False,
        num_threads: int | None = None,
    ) -> None:
        """Opens a model.

        Args:
            model: the folder of an artifact or of a model, a name on the hub, or an open artifact.
            device: "cpu", "cuda", "cuda:1" or "auto"; a model directory is compiled for that.
            revision: of a model on the hub, a branch, tag or commit; None: its main branch.
            compile_options: for a model directory, such as {"dtype": "bfloat16"}.
            truncate: leave out the end of texts that are too long, instead of refusing them.
            num_threads: the most threads of a step; None: one per usable processor.
        """
        if not isinstance(model, Artifact):
            path = path_of("model", model)
            wanted = None if compile_options is None else options_of(compile_options)
            if not is_artifact(path):
                wanted = options_for_device(device, wanted, compile_options)
            model = opened(compiled_path(local(model, path, revision), wanted), device)
        super().__init__(model, truncate=truncate, num_threads=num_threads)


class Embedder(_Opening, text_model.Embedder):
    """A model that makes vectors of texts, used like a `SentenceTransformer`."""


class Classifier(_Opening, text_model.Classifier):
    """A model that scores texts or pairs of them, used like a `CrossEncoder`."""
