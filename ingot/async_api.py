"""What `import ingot` offers for asyncio, which takes long enough to import to stand apart."""

from __future__ import annotations

from ingot.api import FromDirectory
from ingot.runtime import async_llm


class AsyncLLM(FromDirectory, async_llm.AsyncLLM):
    """`ingot.runtime.async_llm.AsyncLLM`, opened as `FromDirectory` says."""
