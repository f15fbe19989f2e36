"""A model directory as a side, run by `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.compare.forms import Task
from ingot.compare.side_parts import folder_tokenizer, greedy_by_logits, needed
from ingot.compiler.torch_import import check_torch, import_torch
from ingot.errors import ModelDirError, UsageError, describe, listed
from ingot.models.file_names import CONFIG
from ingot.models.model_dir import ModelDir
from ingot.runtime.arrays import Float32

if TYPE_CHECKING:
    from ingot.models.text_modules import TextModules

ROWS = "AutoModel"  # the class that loads what gives the rows of a text
UNUSED = "pooler."  # a head of BERT's training, which vectors are not made by
DTYPES = ("float32", "bfloat16", "float16")


class TransformersSide:
    """Runs a model directory by `transformers`; see `ingot.compare.sides.Side`.

    Attention is the eager one, which knows soft caps and sinks, and nothing is cached.

    Raises UsageError without the package, ModelDirError for what it cannot load.
    """

    token_cost = 1

    def __init__(self, name: str, path: Path, dtype: str = "float32") -> None:
        model_dir = ModelDir.open(path)
        check_torch()
        import_torch()
        self.task, kind = _kind(model_dir)
        self._pooled: Pooled | None = None
        if self.task == "embed":
            self._pooled = pooling_of(model_dir)
        self._model: Any = _loaded(path, dtype, kind)
        config = self._model.config.get_text_config()
        self.name = name
        self.what = f"transformers, {dtype}"
        self.vocab_size: int = config.vocab_size
        self.max_model_len: int | None = getattr(config, "max_position_embeddings", None)
        chosen = getattr(self._model, "generation_config", None)
        self.eos_token_ids = _token_ids(getattr(chosen, "eos_token_id", None))
        self.tokenizer = folder_tokenizer(model_dir, self.vocab_size)

    def logits(self, tokens: Sequence[int]) -> Float32:
        import torch

        with torch.inference_mode():
            try:
                out = self._model(torch.tensor([list(tokens)]), **self._given())
            except Exception as error:
                raise ModelDirError(
                    f"{self.name}: transformers raised {describe(error)}"
                ) from error
        if self._pooled is not None:
            return self._pooled(out.last_hidden_state.float())
        logits: Float32 = (out.logits if self.task == "classify" else out.logits[0]).float().numpy()
        return logits

    def _given(self) -> dict[str, Any]:
        return {"use_cache": False} if self.task == "generate" else {}

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        return greedy_by_logits(self.logits, tokens, count)

    def close(self) -> None:
        self._model = None


Pooled = Callable[[Any], Float32]


def _kind(model_dir: ModelDir) -> tuple[Task, str]:
    """What a model does, and the class of `transformers` that loads it, by the class that it was
    saved from."""
    names = model_dir.config.get("architectures") if model_dir.has(CONFIG) else None
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name.endswith("ForSequenceClassification"):
        return "classify", "AutoModelForSequenceClassification"
    if name.endswith("ForTokenClassification"):
        return "token_classify", "AutoModelForTokenClassification"
    with needed("transformers", "hf", "hf:"):
        import transformers
    made = getattr(transformers, name, None)
    generates = made is None or issubclass(made, transformers.GenerationMixin)
    return ("generate", "AutoModelForCausalLM") if generates else ("embed", ROWS)


def pooling_of(model_dir: ModelDir) -> Pooled:
    """What makes a vector [1, C] of the rows [1, T, C] of a text, by the files of the directory.

    Raises UsageError for Dense layers and weights of tokens, which `transformers` does not know,
    and for vectors of tokens.
    """
    import torch
    from torch.nn import functional

    from ingot.models.text_modules import read_modules
    from ingot.ops.pool import pooled as pooled_row

    modules = read_modules(model_dir)
    if foreign := _foreign(modules):
        raise UsageError(
            f"{model_dir.path} has {foreign} behind the model, which transformers does not run",
            hint="Give the model directory without hf:, which is run in float32.",
        )
    hows = modules.pooling if modules else ("mean",)

    def pooled(rows: Any) -> Float32:
        row = torch.cat([pooled_row(rows[0], how) for how in hows])[None]
        vector: Float32 = (
            functional.normalize(row) if modules and modules.normalize else row
        ).numpy()
        return vector

    return pooled


def _foreign(modules: TextModules | None) -> str:
    """What follows the rows of a model that is no pooling; empty if there is nothing else."""
    if modules is None:
        return ""
    if modules.log1ps:
        return "SpladePooling"
    return "Dense layers" if modules.layers else "" if modules.pooling else "no pooling"


def _loaded(path: Path, dtype: str, kind: str) -> Any:
    """The model, with every one of its weights. Runs no code of the directory."""
    with needed("transformers", "hf", "hf:"):
        import transformers
    import torch

    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} of hf:", hint=f"Supported: {', '.join(DTYPES)}.")
    with _quiet():
        try:
            model, info = getattr(transformers, kind).from_pretrained(
                path,
                dtype=getattr(torch, dtype),
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except Exception as error:
            raise ModelDirError(
                f"transformers cannot load {path}: {describe(error)}",
                hint="hf: takes a model directory as transformers saves it.",
            ) from error
    # It would fill these with random numbers, and warn.
    missing = sorted({*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])})
    if kind == ROWS:
        missing = [name for name in missing if not name.startswith(UNUSED)]
    if missing:
        raise ModelDirError(
            f"{path} has no weights for {listed(missing)}, as transformers names them",
            hint="Fetch the model again.",
        )
    return model.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the library's bars and warnings off stderr, which is for our progress."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    return () if value is None else (value,) if isinstance(value, int) else tuple(value)
