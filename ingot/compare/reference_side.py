"""A model directory as a side: the float32 reference of the plain module, its weights streamed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ingot.compare.forms import HF, Task
from ingot.compare.side_parts import folder_tokenizer, greedy_by_logits
from ingot.compiler.torch_import import check_torch, import_torch
from ingot.errors import UnsupportedModelError
from ingot.models.model_dir import ModelDir
from ingot.runtime.arrays import Float32
from ingot.runtime.scoring import finished


class ReferenceSide:
    """Runs the exported graph of the plain module; see `ingot.compare.sides.Side`.

    Raises ModelDirError for what cannot be built, and CompileError without PyTorch.
    """

    token_cost = 2

    def __init__(self, name: str, path: Path, max_model_len: int | None = None) -> None:
        model_dir = ModelDir.open(path)
        check_torch()
        import_torch()
        from ingot.compiler.export import export
        from ingot.models import registry
        from ingot.models.checkpoints.checkpoint import Checkpoint
        from ingot.models.config import ModelConfig
        from ingot.models.text_modules import read_pooler

        try:
            config = registry.load_config(model_dir)
        except UnsupportedModelError as error:
            hint = f"{HF}{name} is run by transformers, and needs no family. {error.hint}"
            raise UnsupportedModelError(error.found, hint=hint) from error
        longest = max_model_len or config.max_position_embeddings
        self.module = registry.build(config, max_model_len=longest)
        self.name = name
        self.what = "model directory, float32 reference"
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len: int | None = longest
        self.eos_token_ids = config.eos_token_ids
        self.pooler = read_pooler(model_dir, config) if isinstance(config, ModelConfig) else None
        encodes = isinstance(config, ModelConfig) and config.head is not None
        self.task: Task = self.pooler.task if encodes and self.pooler else "generate"
        self.tokenizer = folder_tokenizer(model_dir, config.vocab_size)
        self.checkpoint = Checkpoint.open(model_dir, config, self.module)
        self.graph = export(self.module, config)

    def order_columns(self) -> None:
        """From here on, columns of quantized matrices are in the order of their groups."""
        from ingot.compiler.orders import register_orders, with_orders

        checkpoint = self.checkpoint
        with_orders(self.graph, register_orders(self.module, checkpoint, checkpoint.quantized))

    def logits(self, tokens: Sequence[int]) -> Float32:
        from ingot.compiler.reference import Interpreter

        (found,) = Interpreter(self.graph, self.checkpoint.read, [tokens]).run()
        rows: Float32 = found[0].numpy()
        return rows if self.task == "generate" or not self.pooler else finished(rows, self.pooler)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        return greedy_by_logits(self.logits, tokens, count)

    def close(self) -> None:
        self.checkpoint.close()
