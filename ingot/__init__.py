"""ingot: turns a language-model directory into one folder that runs without PyTorch.

The names below are loaded when they are first used, so that `import ingot` costs next to nothing
and only `ingot.compile` ever imports PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingot.imports import imported
from ingot.version import __version__ as __version__

if TYPE_CHECKING:
    from ingot.api import LLM as LLM
    from ingot.api import EngineArgs as EngineArgs
    from ingot.api import compile as compile
    from ingot.artifact.reader import Artifact as Artifact
    from ingot.async_api import AsyncEngineArgs as AsyncEngineArgs
    from ingot.async_api import AsyncLLM as AsyncLLM
    from ingot.async_api import AsyncLLMEngine as AsyncLLMEngine
    from ingot.errors import IngotError as IngotError
    from ingot.runtime.beam_search import BeamSearchOutput as BeamSearchOutput
    from ingot.runtime.beam_search import BeamSearchParams as BeamSearchParams
    from ingot.runtime.beam_search import BeamSearchSequence as BeamSearchSequence
    from ingot.runtime.config import EngineConfig as EngineConfig
    from ingot.runtime.metrics import EngineCounters as EngineCounters
    from ingot.runtime.metrics import RequestMetrics as RequestMetrics
    from ingot.runtime.output import CompletionOutput as CompletionOutput
    from ingot.runtime.output import Logprob as Logprob
    from ingot.runtime.output import RequestOutput as RequestOutput
    from ingot.runtime.params import RequestOutputKind as RequestOutputKind
    from ingot.runtime.params import SamplingParams as SamplingParams
    from ingot.runtime.prompts import TextPrompt as TextPrompt
    from ingot.runtime.prompts import TokensPrompt as TokensPrompt
    from ingot.runtime.sessions.session import Session as Session
    from ingot.runtime.sessions.streams import Streams as Streams
    from ingot.runtime.structured.outputs import StructuredOutputsParams as StructuredOutputsParams
    from ingot.text_api import Classifier as Classifier
    from ingot.text_api import Embedder as Embedder

_HOMES = {
    "compile": "ingot.api",
    "Artifact": "ingot.artifact.reader",
    "IngotError": "ingot.errors",
    "LLM": "ingot.api",
    "EngineArgs": "ingot.api",
    "Embedder": "ingot.text_api",
    "Classifier": "ingot.text_api",
    "AsyncLLM": "ingot.async_api",
    "AsyncLLMEngine": "ingot.async_api",
    "AsyncEngineArgs": "ingot.async_api",
    "BeamSearchOutput": "ingot.runtime.beam_search",
    "BeamSearchParams": "ingot.runtime.beam_search",
    "BeamSearchSequence": "ingot.runtime.beam_search",
    "EngineConfig": "ingot.runtime.config",
    "EngineCounters": "ingot.runtime.metrics",
    "RequestMetrics": "ingot.runtime.metrics",
    "CompletionOutput": "ingot.runtime.output",
    "Logprob": "ingot.runtime.output",
    "RequestOutput": "ingot.runtime.output",
    "RequestOutputKind": "ingot.runtime.params",
    "SamplingParams": "ingot.runtime.params",
    "Session": "ingot.runtime.sessions.session",
    "Streams": "ingot.runtime.sessions.streams",
    "StructuredOutputsParams": "ingot.runtime.structured.outputs",
    "TextPrompt": "ingot.runtime.prompts",
    "TokensPrompt": "ingot.runtime.prompts",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ingot' has no attribute {name!r}")
    value = getattr(imported(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
