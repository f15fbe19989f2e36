"""Serves a GGUF file with mistral.rs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from loop import Generate, in_two_turns, serve

FIRST_NAMED = 512  # of the tokens that a text can name: see to_gguf.py
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def open_model(path: str, threads: int, context: int, streams: int) -> Generate:
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    import mistralrs  # reads the environment

    file = Path(path)
    # Where it computes in float32, which is faster, it fails with several quantized prompts.
    dtype = mistralrs.ModelDType.Auto if streams == 1 else mistralrs.ModelDType.BF16
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(TEMPLATE)
        template.flush()
        runner = mistralrs.Runner(
            mistralrs.Which.GGUF(str(file.parent), file.name, dtype=dtype), max_seqs=streams,
            prefix_cache_n=0, jinja_explicit=template.name,
        )  # fmt: skip

    def ask(tokens: list[int], new_tokens: int) -> object:
        text = "".join(f"<|{FIRST_NAMED + token}|>" for token in tokens)
        return runner.send_chat_completion_request(
            mistralrs.ChatCompletionRequest(
                [{"role": "user", "content": text}], "default", max_tokens=new_tokens,
                temperature=0, ignore_eos=True, stream=True,
            )
        )  # fmt: skip

    def complete(prompts: list[list[int]], new_tokens: int) -> list[object]:
        # All are asked before the first is read, since it takes one call at a time.
        return [list(answer)[-1].usage for answer in [ask(each, new_tokens) for each in prompts]]

    def alone(prompts: list[list[int]], new_tokens: int) -> list[float]:
        (usage,) = complete(prompts, new_tokens)
        found = usage.prompt_tokens, usage.completion_tokens
        if found != (len(prompts[0]), new_tokens):
            raise RuntimeError(f"it has counted {found} tokens")
        later = usage.total_completion_time_sec / (new_tokens - 1)
        return [usage.total_prompt_time_sec] + [later] * (new_tokens - 1)

    return alone if streams == 1 else in_two_turns(complete)


if __name__ == "__main__":
    serve(open_model)
