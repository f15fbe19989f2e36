"""From a graph over a batch to a model of ONNX, by PyTorch's own exporter."""

from __future__ import annotations

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import optimizer
from torch._subclasses.fake_tensor import FakeTensorMode

from ingot.errors import ExportError
from ingot.models.config import ModelConfig
from ingot.onnx.batched import Batched
from ingot.onnx.weights import Make
from ingot.version import __version__

BATCH, TOKENS, PAST, TOTAL = (
    "batch_size", "sequence_length", "past_sequence_length", "total_sequence_length",
)  # fmt: skip
EXAMPLE = {BATCH: 2, TOKENS: 3, PAST: 5, TOTAL: 8}  # no two alike
KINDS = ("key", "value")  # of what is cached
DOMAINS = {"": None, "com.microsoft": {"MatMulNBits"}}  # and which of their operators
INLINE_BYTES = 1024  # of the largest tensor that lies in the model's own file
PAGE = 4096
_MISSING = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")


def make_program(build: Callable[[], Batched], config: ModelConfig, opset: int) -> ir.Model:
    """The module as a model of ONNX whose weights are read when they are written.

    No tensor of the module has memory: it is built among fake ones.

    Raises:
        ExportError: the module cannot be captured for a batch, or calls what ONNX has no
            operator for.
    """
    with _refusing(config), FakeTensorMode(), torch.no_grad():
        module = build().eval()
        program = torch.export.export(
            module,
            tuple(_example(name, config, module.narrow) for name in module.input_names),
            dynamic_shapes=(tuple(map(_dynamic, module.input_names)),),
            strict=False,
        )
        exported = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            input_names=module.input_names,
            output_names=module.output_names,
            optimize=False,  # it would read weights that are not there yet
            verbose=False,
        )
    assert exported is not None, "an export to no file gives a program"
    model = exported.model
    attach(model, module.weights.makes())
    optimizer.optimize_ir(model)
    name_dimensions(model, config)
    forget_origins(model)
    check_operators(model, config)
    return model


def shape_of(name: str, config: ModelConfig) -> tuple[str | int, ...]:
    """The shape of an input or an output."""
    if name == "logits":
        return BATCH, TOKENS, config.vocab_size
    if name == "attention_mask":
        return BATCH, TOTAL
    if name in ("input_ids", "position_ids"):
        return BATCH, TOKENS
    stem, layer, kind = name.rsplit(".", 2)
    cached = config.layers[int(layer)].mixer.cached
    heads, size = cached[min(KINDS.index(kind), len(cached) - 1)]  # of latent rows, both are one
    return BATCH, heads, PAST if stem.startswith("past") else TOTAL, size


def _example(name: str, config: ModelConfig, narrow: torch.dtype) -> torch.Tensor:
    sizes = [EXAMPLE.get(size, size) for size in shape_of(name, config)]  # type: ignore[arg-type]
    dtype = narrow if name.startswith("past") else torch.int64
    return torch.zeros(sizes, dtype=dtype)


def _dynamic(name: str) -> dict[int, Any]:
    """The dimensions of an input that may have any size; that of the mask follows from others."""
    batch, tokens, past = (torch.export.Dim(each, min=1) for each in (BATCH, TOKENS, PAST))
    if name == "attention_mask":
        return {0: batch, 1: torch.export.Dim.AUTO}
    return {0: batch, 2: past} if name.startswith("past") else {0: batch, 1: tokens}


@contextmanager
def _refusing(config: ModelConfig) -> Iterator[None]:
    """Turns what PyTorch raises into an ExportError that names the op in the way."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # It tells of packages that are not installed, and that no model here needs.
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            yield
    except Exception as error:
        raise refusal(error, config) from error


def refusal(error: BaseException, config: ModelConfig) -> ExportError:
    """The error of a model that PyTorch does not export."""
    chain: list[BaseException] = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    ops = [found[1] for each in chain if (found := _MISSING.search(str(each)))]
    if ops:
        return ExportError(
            f"{config.architecture} calls {ops[0]}, which ONNX has no operator for",
            hint="Write the op in calls of PyTorch's that have one, or give it such a reference.",
        )
    root = chain[-1]  # those around it tell of PyTorch's own steps
    first = (str(root).strip().splitlines() or [""])[0]
    return ExportError(
        f"{config.architecture} cannot be exported to ONNX: {type(root).__name__}: {first}",
        hint="A model treats any number of tokens alike; only attention lets them meet.",
    )


def attach(model: ir.Model, makes: dict[str, tuple[str, Make]]) -> None:
    """Gives the weights of a model their names and what reads them."""
    for value in list(model.graph.initializers.values()):
        own = str(value.name).removeprefix("weights.")
        if own not in makes:
            continue
        name, make = makes[own]
        shape, dtype = value.shape, value.dtype
        assert shape is not None and dtype is not None, "a weight has a shape and a dtype"
        value.name = name
        value.const_value = ir.LazyTensor(
            lambda make=make, name=name: ir.tensor(make(), name=name),
            dtype=dtype,
            shape=shape,
            name=name,
        )


def name_dimensions(model: ir.Model, config: ModelConfig) -> None:
    """Gives dimensions the names of `shape_of` instead of PyTorch's symbols."""
    names: dict[str, str] = {}
    for value in model.graph.inputs:
        assert value.shape is not None, "an input has a shape"
        for dim, name in zip(value.shape, shape_of(str(value.name), config), strict=True):
            if isinstance(dim, ir.SymbolicDim) and str(dim.value).isidentifier():
                names[str(dim.value)] = str(name)
    nodes = (output for node in model.graph for output in node.outputs)
    for value in (*model.graph.inputs, *nodes):
        if value.shape is not None:
            value.shape = ir.Shape(_renamed(dim, names) for dim in value.shape)


def _renamed(dim: int | ir.SymbolicDim, names: dict[str, str]) -> int | str | None:
    if isinstance(dim, int):
        return dim
    text = re.sub(r"\w+", lambda found: names.get(found[0], found[0]), str(dim.value))
    return TOTAL if set(text.split(" + ")) == {PAST, TOKENS} else text


def forget_origins(model: ir.Model) -> None:
    """Removes what the exporter notes on every node: paths of this machine among others."""
    model.producer_name, model.producer_version = "ingot", __version__
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def check_operators(model: ir.Model, config: ModelConfig) -> None:
    """Raises ExportError for an operator that is neither standard nor one of onnxruntime's own
    that an export uses on purpose."""
    for node in model.graph:
        allowed = DOMAINS.get(node.domain, set())
        if allowed is not None and node.op_type not in allowed:
            raise ExportError(
                f"{config.architecture} calls {node.domain}::{node.op_type}, which is no operator "
                "of ONNX",
                hint="Write the op in calls of PyTorch's that ONNX has an operator for.",
            )


def count_operators(model: ir.Model) -> dict[str, int]:
    """Counts each operator, the most frequent first."""
    return dict(Counter(node.op_type for node in model.graph).most_common())


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all weights of a model."""
    values = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in values if tensor is not None)


def save(model: ir.Model, file: Path, on_read: Callable[[str], None]) -> None:
    """Writes a model, and its weights one by one into a file beside it."""
    ir.save(
        model,
        file,
        external_data=f"{file.name}.data",
        size_threshold_bytes=INLINE_BYTES,
        callback=lambda tensor, _: on_read(str(tensor.name)),
        alignment=PAGE,  # so that a memory map of each begins where it does
        align_threshold=PAGE,
    )


def save_beside(model: ir.Model, file: Path, other: Path) -> None:
    """Writes a model that reads its weights from where another of the same folder has them."""
    known = ir.load(other).graph.initializers
    for name, value in model.graph.initializers.items():
        tensor = known[name].const_value if name in known else None
        if isinstance(tensor, ir.ExternalTensor) and tensor.shape == value.shape:
            value.const_value = tensor
    ir.save(model, file)
