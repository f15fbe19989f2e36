"""A model directory as a side, run by `transformers`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ingot.compare.side_parts import folder_tokenizer, greedy_by_logits, needed
from ingot.compiler.torch_import import check_torch, import_torch
from ingot.errors import ModelDirError, UsageError, describe, listed
from ingot.models.model_dir import ModelDir
from ingot.runtime.arrays import Float32

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
        self._model: Any = _loaded(path, dtype)
        config = self._model.config.get_text_config()
        self.name = name
        self.what = f"transformers, {dtype}"
        self.vocab_size: int = config.vocab_size
        self.max_model_len: int | None = getattr(config, "max_position_embeddings", None)
        self.eos_token_ids = _token_ids(self._model.generation_config.eos_token_id)
        self.tokenizer = folder_tokenizer(model_dir, self.vocab_size)

    def logits(self, tokens: Sequence[int]) -> Float32:
        import torch

        with torch.inference_mode():
            try:
                out = self._model(torch.tensor([list(tokens)]), use_cache=False)
            except Exception as error:
                raise ModelDirError(
                    f"{self.name}: transformers raised {describe(error)}"
                ) from error
        logits: Float32 = out.logits[0].float().numpy()
        return logits

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        return greedy_by_logits(self.logits, tokens, count)

    def close(self) -> None:
        self._model = None


def _loaded(path: Path, dtype: str) -> Any:
    """The model, with every one of its weights. Runs no code of the directory."""
    with needed("transformers", "hf", "hf:"):
        import transformers
    import torch

    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} of hf:", hint=f"Supported: {', '.join(DTYPES)}.")
    with _quiet():
        try:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
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
