"""Quantizes a GGUF file by llama.cpp and scores what comes out, in the environment of llama.cpp.

    PYTHON -m bench.curve_llama REQUEST.json

The request names the file, the types, the file of the importance matrix, the folder to write into,
and for each text its tokens and the file of the base's logits. A line of JSON on stdout follows for
each type, without and with the importance matrix. Without texts nothing is scored, and the files
stay. Only numpy and llama_cpp are needed.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from bench.curve_scores import Scores

THREADS = len(os.sched_getaffinity(0))
AS_IT_IS = "F16"  # the file itself, which tells how far two runtimes are apart


def quantized(source: Path, out: Path, kind: str, importance: Mapping[str, Any] | None) -> None:
    """Writes the file in a type of llama.cpp, such as Q4_K_M."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    options.nthread = THREADS
    if importance is not None:
        options.imatrix = entries(importance)
    code = llama_cpp.llama_model_quantize(bytes(source), bytes(out), ctypes.byref(options))
    if code:
        raise RuntimeError(f"llama_model_quantize gave {code} for {kind}")


def entries(importance: Mapping[str, Any]) -> Any:
    """As llama.cpp takes them: an array that a null name ends."""
    entries = (llama_cpp.llama_model_imatrix_data * (len(importance) + 1))()
    for entry, (name, squares) in zip(entries, importance.items(), strict=False):
        numbers = (ctypes.c_float * len(squares))(*squares.tolist())
        entry.name, entry.size = name.encode(), len(squares)
        entry.data = ctypes.cast(numbers, ctypes.POINTER(ctypes.c_float))
    return ctypes.cast(entries, ctypes.POINTER(llama_cpp.llama_model_imatrix_data))


def scored(model: Path, texts: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of a file, over the texts of the request."""
    longest = max(len(text["tokens"]) for text in texts)
    llama = llama_cpp.Llama(
        str(model), n_ctx=longest, n_batch=longest, logits_all=True, n_threads=THREADS,
        n_threads_batch=THREADS, verbose=False,
    )  # fmt: skip
    scores = Scores()
    for text in texts:
        llama.reset()
        llama.eval(text["tokens"])
        ours = np.array(llama.scores[: len(text["tokens"])], np.float32)
        scores.add(text["tokens"], np.load(text["base"], mmap_mode="r"), ours)
    llama.close()
    return scores.figures()


def main(request: Path) -> None:
    # The library prints to stdout, too.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    wanted = json.loads(request.read_text())
    source, folder = Path(wanted["model"]), Path(wanted["folder"])
    importance = dict(np.load(wanted["importance"]))
    for kind, with_importance in wanted["points"]:
        out = source if kind == AS_IT_IS else folder / f"{kind}.gguf"
        if kind != AS_IT_IS:
            quantized(source, out, kind, importance if with_importance else None)
        answer = {
            "name": kind, "importance": with_importance, "bytes": out.stat().st_size,
            "version": llama_cpp.__version__,
        }  # fmt: skip
        if wanted["texts"]:
            answer |= scored(out, wanted["texts"])
        else:
            answer["file"] = str(out)
        if wanted["texts"] and kind != AS_IT_IS:
            out.unlink()
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
