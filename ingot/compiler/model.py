"""A model directory as the compiler reads it, without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tokenizers import Tokenizer
from torch import nn
from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.artifact.pooler import Pooler
from ingot.artifact.programs import HIDDEN, TOKENS
from ingot.compiler.options import Clock, CompileOptions, is_measured
from ingot.compiler.orders import register_orders
from ingot.compiler.quality_texts import given_text
from ingot.compiler.quantization.choose import check_calibration
from ingot.compiler.quantization.graph_matrices import matrices_in
from ingot.compiler.quantization.kept import holds, kept_storage
from ingot.compiler.quantization.quantize import KeptIntegers
from ingot.compiler.quantization.sequences import calibration_sequences, sample_sequences
from ingot.compiler.quantization.storage import Fits
from ingot.compiler.resolve import Resolved, resolve
from ingot.compiler.tokenizer import checked_files, parsed_tokenizer
from ingot.errors import UsageError
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint, closing_on_error
from ingot.models.config import ModelConfig
from ingot.models.foreign.config import LIBRARY, AnyConfig, ForeignConfig
from ingot.models.model_dir import ModelDir
from ingot.models.text_modules import read_pooler, token_size
from ingot.passes.pipeline import check_disabled
from ingot.targets.target import kind_of


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model directory, read and checked. The module has no weights; the checkpoint is open.

    `calibration` is tokens of the text that a user calibrates with, and `sample` those of the
    bundled one, where matrices may have to be rounded without it. `orders` is of `register_orders`.
    """

    model_dir: ModelDir
    options: CompileOptions
    config: AnyConfig
    resolved: Resolved
    tokenizer: Tokenizer
    module: nn.Module
    checkpoint: Checkpoint
    calibration: list[list[int]]
    quality_text: dict[str, list[int]] = field(default_factory=dict)
    tokenizer_files: dict[str, bytes] = field(default_factory=dict)
    sample: list[list[int]] = field(default_factory=list)
    orders: dict[str, str] = field(default_factory=dict)
    pooler: Pooler | None = None

    @property
    def ignored(self) -> tuple[str, ...]:
        """Parts of its files that change nothing, where that may be a surprise."""
        keys: list[str] = []
        if isinstance(self.config, ModelConfig):
            registry.parse_config(self.model_dir.config, keys)
        return (*keys, *self.checkpoint.ignored)


def family_config(model: OpenModel) -> ModelConfig:
    """The config of a model that a family builds. Raises UsageError for any other."""
    if isinstance(model.config, ForeignConfig):
        raise UsageError(
            f"{model.config.architecture} is compiled from {LIBRARY}",
            hint="This takes a model that a family of ingot builds.",
        )
    return model.config


def read_model(
    model_dir: ModelDir, options: CompileOptions, clock: Clock, fits: Fits | None = None
) -> OpenModel:
    """Reads all but the weights; `fits` is as in `kept_storage`."""
    with clock.stage("read", str(model_dir.path)):
        config = registry.load_config(model_dir, options.library)
        known = isinstance(config, ModelConfig) or config.head is not None
        pooler = read_pooler(model_dir, config) if known else None
        resolved = resolve(options, config, embeds=pooler is not None)
        if pooler is not None and {TOKENS, HIDDEN} & {*resolved.programs}:
            pooler = replace(pooler, tokens=token_size(config))
        rules = [rule for target in resolved.targets for rule in kind_of(target).rules]
        check_disabled(options.disable_passes, rules)
        files = checked_files(model_dir, config.vocab_size)
        tokenizer = parsed_tokenizer(model_dir, files, config.vocab_size)
        longest = resolved.limits.max_model_len
        calibration = calibration_sequences(options.calibrate, tokenizer, max_model_len=longest)
        sample = []
        if not calibration and (options.quantize != "none" or options.keep or is_measured(options)):
            sample = sample_sequences(tokenizer, config.vocab_size, max_model_len=longest)
        quality_text = {}
        if options.quality and options.quality_text is not None:
            quality_text = given_text(options.quality_text, tokenizer, options.quality_positions)
        module = registry.build(config, max_model_len=longest)
        checkpoint = Checkpoint.open(model_dir, config, module)
        with closing_on_error(checkpoint):
            kept = kept_storage(checkpoint.quantized, options, resolved.targets, fits)
            orders = register_orders(module, checkpoint, kept)
        resolved = replace(resolved, kept=kept)
    return OpenModel(
        model_dir,
        options,
        config,
        resolved,
        tokenizer,
        module,
        checkpoint,
        calibration,
        quality_text,
        files,
        sample,
        orders,
        pooler,
    )


def storage_of(
    model: OpenModel, graph: GraphModule, fits: Fits | None = None
) -> dict[str, Storage]:
    """Storage of the exported graph's matrices that become integers; `fits` is as in
    `Resolved.storage_of`.

    Raises:
        UsageError: they cannot be stored as the options say, or leave nothing to calibrate.
    """
    matrices = matrices_in(graph)
    storage = model.resolved.storage_of(matrices, fits)
    if model.calibration:
        check_calibration(matrices, storage)
    return storage


def kept_integers(model: OpenModel) -> KeptIntegers:
    """The integers of the checkpoint that the model is stored in."""
    checkpoint = model.checkpoint
    return KeptIntegers(_exact(model), checkpoint.scaled, checkpoint.shape)


def keeps(model: OpenModel, storage: Mapping[str, Storage]) -> bool:
    """Returns whether a storage has some matrices as the checkpoint has them."""
    return any(storage.get(name) == stored for name, stored in _exact(model).items())


def _exact(model: OpenModel) -> dict[str, Storage]:
    """Storage of the parameters that keep the numbers of the checkpoint."""
    return {
        name: stored
        for name, stored in model.resolved.kept.items()
        if holds(model.checkpoint.quantized[name], stored)
    }
