"""Serves a GGUF file with llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator

import llama_cpp
from loop import Generate, seconds_of, serve

BATCH = 512


def open_model(path: str, threads: int, context: int, streams: int) -> Generate:
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    options = llama_cpp.llama_context_default_params()
    options.n_ctx, options.n_seq_max = context * streams, streams
    options.n_batch = options.n_ubatch = BATCH
    options.n_threads = options.n_threads_batch = threads
    llama = llama_cpp.llama_init_from_model(model, options)
    batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def compute(rows: list[tuple[int, int, int, bool]]) -> None:
        """A step of tokens, each with its position, its sequence, and whether another follows."""
        for i, (token, position, sequence, needs_logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, needs_logits
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        batch.n_tokens = len(rows)
        if code := llama_cpp.llama_decode(llama, batch):
            raise RuntimeError(f"llama_decode gave {code}")
        llama_cpp.llama_synchronize(llama)

    def complete(prompts: list[list[int]], new_tokens: int) -> Iterator[int]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llama), True)
        length = len(prompts[0])
        rows = [
            (token, position, sequence, position == length - 1)
            for sequence, tokens in enumerate(prompts) for position, token in enumerate(tokens)
        ]  # fmt: skip
        for start in range(0, len(rows), BATCH):
            compute(rows[start : start + BATCH])
        yield 0
        for count in range(1, new_tokens):
            # Any token costs the same; sampling is left out, in favour of the peer.
            compute([(count, length + count - 1, sequence, True) for sequence in range(streams)])
            yield count

    return lambda prompts, new_tokens: seconds_of(complete(prompts, new_tokens))


if __name__ == "__main__":
    serve(open_model)
