"""An ONNX file as a side, run by onnxruntime on the CPU.

Two forms of a language model are known: tokens and positions to logits, and the same with a mask,
and keys and values that go in and come out, as Optimum and ONNX Runtime GenAI name them. The second
runs with an empty cache. Of a model of whole texts the vector or the scores are known, as Optimum
names them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.artifact.pooler import OF_TOKENS as EACH_TOKEN
from ingot.compare.forms import Task
from ingot.compare.side_parts import folder_tokenizer, greedy_by_logits, needed
from ingot.errors import ModelDirError, UsageError, describe, listed
from ingot.models.file_names import CONFIG
from ingot.models.model_dir import ModelDir
from ingot.runtime.arrays import Float32

GENAI = "genai_config.json"
LOGITS = "logits"
PAST = re.compile(r"past_key_values\.\d+\.(key|value)")
VECTORS, OF_TOKENS = "sentence_embedding", "token_embeddings"
SUPPORTED = (
    "Supported inputs: input_ids, position_ids, attention_mask, token_type_ids, prompt_length and "
    f"past_key_values.N.key and .value; one output must be {LOGITS}, {VECTORS} or {OF_TOKENS}. "
    "`ingot export-onnx` writes such files."
)
INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
WHOLE = ("input_ids", "position_ids", "attention_mask", "token_type_ids")
BEFORE = "prompt_length"  # tokens of each text that are not pooled
RESULTS: dict[Task, str] = {
    "generate": LOGITS,
    "embed": VECTORS,
    "token_embed": OF_TOKENS,
    "classify": LOGITS,
    "token_classify": LOGITS,
}
MOST_SAID = 400
QUIET = 3  # of onnxruntime's levels: errors alone


class OnnxSide:
    """Runs an ONNX file; see `ingot.compare.sides.Side`.

    Raises UsageError without onnxruntime and for unknown inputs, ModelDirError for a file that
    onnxruntime does not load, such as one of an opset that it does not know.
    """

    token_cost = 1

    def __init__(self, name: str, path: Path) -> None:
        self._session: Any = _session(path)
        self._inputs: list[Any] = self._session.get_inputs()
        outputs = self._session.get_outputs()
        _check(path, self._inputs, [output.name for output in outputs])
        self.name = name
        folder = ModelDir.at(path.parent)
        self.task: Task = _task(outputs, folder.config if folder.has(CONFIG) else {})
        model = (folder.json(GENAI) if folder.has(GENAI) else {}).get("model", {})
        self.max_model_len: int | None = model.get("context_length")
        ends = model.get("eos_token_id", [])
        self.eos_token_ids = (ends,) if isinstance(ends, int) else tuple(ends)
        self.what = "ONNX, onnxruntime"
        self.vocab_size: int = self._vocab_size(folder)
        self.tokenizer = folder_tokenizer(folder, self.vocab_size)

    def _vocab_size(self, folder: ModelDir) -> int:
        """How many tokens it knows. Raises UsageError where nothing tells."""
        if self.task == "generate":
            return int(self.logits([0, 0]).shape[-1])
        config = folder.config if folder.has(CONFIG) else {}
        size = (config | config.get("text_config", {})).get("vocab_size")
        if not isinstance(size, int):
            raise UsageError(
                f"{self.name} has no {CONFIG} with a vocab_size beside it",
                hint="Copy it there: it says which tokens the model takes.",
            )
        return size

    def logits(self, tokens: Sequence[int]) -> Float32:
        found = self._run(tokens)
        if self.task != "generate":
            rows = found[0] if self.task in EACH_TOKEN else found
            return rows.astype(np.float32, copy=False)
        if found.ndim != 3 or found.shape[:2] != (1, len(tokens)):
            raise UsageError(
                f"{self.name} gives {LOGITS} of the shape {list(found.shape)} for {len(tokens)} "
                "tokens",
                hint="It must give those of every position: [batch, tokens, vocabulary].",
            )
        logits: Float32 = found[0].astype(np.float32, copy=False)
        return logits

    def _run(self, tokens: Sequence[int]) -> NDArray[Any]:
        given = {each.name: _value(each, tokens) for each in self._inputs}
        try:
            (found,) = self._session.run([RESULTS[self.task]], given)
        except Exception as error:
            raise ModelDirError(f"{self.name}: onnxruntime raised {describe(error)}") from error
        logits: NDArray[Any] = found
        return logits

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        return greedy_by_logits(self.logits, tokens, count)

    def close(self) -> None:
        self._session = None


def _session(path: Path) -> Any:
    if not os.path.isfile(path):
        what = "is a directory" if os.path.isdir(path) else "does not exist"
        raise UsageError(f"{path} {what}", hint="Give a file that ends in .onnx.")
    with needed("onnxruntime", "onnx", "An .onnx file"):
        import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    # Threads that wait in a loop would take the processors from the other side.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelDirError(
            f"onnxruntime {onnxruntime.__version__} cannot load {path}: {_reason(error)}",
            hint="Where the file is whole and its external data lie beside it, a newer onnxruntime "
            "may know its opset and operators.",
        ) from error


def _reason(error: Exception) -> str:
    """Strips from an onnxruntime error the file and the place in its own code."""
    said = " ".join(str(error).split()).rpartition(" failed:")[2]
    return re.sub(r"^/onnxruntime_src/.*\) ", "", said)[:MOST_SAID]


def _check(path: Path, inputs: Sequence[Any], outputs: Sequence[str]) -> None:
    names = [each.name for each in inputs]
    unknown = [each.name for each in inputs if not _is_known(each)]
    if unknown or "input_ids" not in names:
        what = f"unknown inputs: {listed(unknown)}" if unknown else "no input input_ids"
        raise UsageError(f"{path} has {what}", hint=SUPPORTED)
    if not {LOGITS, VECTORS, OF_TOKENS} & {*outputs}:
        raise UsageError(
            f"{path} has no output {LOGITS}, {VECTORS} or {OF_TOKENS}: {listed(list(outputs))}",
            hint=SUPPORTED,
        )


def _task(outputs: Sequence[Any], config: Mapping[str, Any]) -> Task:
    """What a file makes of tokens: scores of a text's labels have no dimension of positions, and
    only the config beside it tells those of tokens from logits."""
    shapes = {each.name: each.shape for each in outputs}
    if VECTORS in shapes:
        return "embed"
    if OF_TOKENS in shapes:
        return "token_embed"
    if len(shapes[LOGITS] or ()) == 2:
        return "classify"
    named = str(config.get("architectures") or "")
    return "token_classify" if "ForTokenClassification" in named else "generate"


def _is_known(given: Any) -> bool:
    if PAST.fullmatch(given.name):
        _, heads, _, size = given.shape if len(given.shape) == 4 else (None,) * 4
        return given.type in FLOATS and isinstance(heads, int) and isinstance(size, int)
    return given.name in (*WHOLE, BEFORE) and given.type in INTEGERS


def _value(given: Any, tokens: Sequence[int]) -> NDArray[Any]:
    """Makes the value of an input for a prompt of one sequence and an empty cache."""
    if PAST.fullmatch(given.name):
        _, heads, _, size = given.shape
        return np.empty((1, heads, 0, size), FLOATS[given.type])
    if given.name == BEFORE:
        return np.zeros(1, INTEGERS[given.type])
    values = {
        "input_ids": tokens,
        "position_ids": range(len(tokens)),
        "attention_mask": [1] * len(tokens),
        "token_type_ids": [0] * len(tokens),
    }
    return np.array([list(values[given.name])], INTEGERS[given.type])
