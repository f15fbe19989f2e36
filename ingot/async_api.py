"""What `import ingot` offers for asyncio, which takes long enough to import to stand apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ingot.api import LLM
from ingot.artifact.reader import Artifact
from ingot.runtime import async_llm, llm


class AsyncLLM(async_llm.AsyncLLM):
    """`ingot.runtime.async_llm.AsyncLLM` that also takes a model directory, as `LLM` does."""

    @staticmethod
    def _open(model: str | Path | Artifact, options: dict[str, Any]) -> llm.LLM:
        return llm.LLM(model, **options) if isinstance(model, Artifact) else LLM(model, **options)
