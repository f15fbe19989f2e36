"""Opens models in this process. Its imports take longer than all others of a server."""

from __future__ import annotations

from pathlib import Path

from ingot.artifact.reader import Artifact, Check
from ingot.runtime.llm import LLM
from ingot.serve.settings import ModelSettings


def open_model(path: str | Path, settings: ModelSettings, check: Check = "fast") -> LLM:
    """Opens an artifact as the settings say. Raises what `LLM` raises."""
    return LLM(
        Artifact.open(path, check, device=settings.device),
        max_model_len=settings.context,
        kv_cache_bytes=settings.kv_bytes,
        num_threads=settings.threads,
        seed=settings.seed,
        config=settings.switches(),
    )
