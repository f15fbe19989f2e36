"""llama.cpp as a judge: run with the environment in build/llama, which has llama-cpp-python.

    python judge.py MODEL.gguf REQUEST.json OUT.npz

The request has texts to encode, conversations to render, and sequences of tokens whose logits are
wanted. Only the standard library, numpy and llama_cpp are here.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np


def main(model: str, request: str, out: str) -> None:
    from llama_cpp import Llama
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    with open(request) as file:
        wanted: dict[str, Any] = json.load(file)
    llama = Llama(model, n_ctx=1024, logits_all=True, n_threads=2, verbose=False)
    found: dict[str, Any] = {}
    for i, text in enumerate(wanted["texts"]):
        found[f"tokens{i}"] = np.array(llama.tokenize(text.encode(), add_bos=True, special=False))
    template = llama.metadata.get("tokenizer.chat_template")
    if template and wanted["chats"]:
        spelled = {
            name: llama._model.token_get_text(token)
            for name, token in (("bos", llama.token_bos()), ("eos", llama.token_eos()))
        }
        formatter = Jinja2ChatFormatter(template, spelled["eos"], spelled["bos"])
        for i, chat in enumerate(wanted["chats"]):
            found[f"chat{i}"] = np.array(formatter(messages=chat).prompt)
    for i, tokens in enumerate(wanted["sequences"]):
        llama.reset()
        llama.eval(tokens)
        found[f"logits{i}"] = np.array(llama.scores[: len(tokens)], np.float32)
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
