"""Serves a GGUF file with llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator

import llama_cpp
from loop import Generate, seconds_of, serve


def open_model(path: str, threads: int, context: int) -> Generate:
    llm = llama_cpp.Llama(
        path, n_ctx=context, n_batch=512, n_ubatch=512, verbose=False,
        n_threads=threads, n_threads_batch=threads,
    )  # fmt: skip

    def complete(tokens: list[int], new_tokens: int) -> Iterator[int]:
        llm.reset()
        for count in range(new_tokens):
            llm.eval(tokens)
            # Any token costs the same; sampling is left out, in favour of the peer.
            tokens = [1 + count]
            yield count

    return lambda tokens, new_tokens: seconds_of(complete(tokens, new_tokens))


if __name__ == "__main__":
    serve(open_model)
