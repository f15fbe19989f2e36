"""What `import ingot` offers for asyncio, which takes long enough to import to stand apart."""

from __future__ import annotations

from ingot.api import EngineArgs, FromDirectory
from ingot.runtime import async_llm


class AsyncLLM(FromDirectory, async_llm.AsyncLLM):
    """A model whose requests are async iterators; the arguments are those of `ingot.LLM`.

    An async context manager. Use it from one event loop or several.
    """

    def shutdown(self) -> None:
        """`close`, under vLLM's name."""
        self.close()


# vLLM's names of the same.
AsyncLLMEngine = AsyncLLM
AsyncEngineArgs = EngineArgs
