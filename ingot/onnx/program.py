"""From a graph over a batch to a model of ONNX, by PyTorch's own exporter."""

from __future__ import annotations

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import optimizer
from torch._subclasses.fake_tensor import FakeTensorMode

from ingot.errors import ExportError
from ingot.models.config import ModelConfig
from ingot.onnx.batched import BATCH, PAST, TOKENS, TOTAL, Batched, Shape
from ingot.onnx.weights import Make
from ingot.version import __version__

EXAMPLE = {BATCH: 2, TOKENS: 3, PAST: 5, TOTAL: 8}  # no two alike
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
            tuple(_example(name, shape, module.narrow) for name, shape in module.inputs.items()),
            dynamic_shapes=(tuple(map(_dynamic, module.inputs.values())),),
            strict=False,
        )
        exported = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            input_names=[*module.inputs],
            output_names=module.output_names,
            optimize=False,  # it would read weights that are not there yet
            verbose=False,
        )
    assert exported is not None, "an export to no file gives a program"
    model = exported.model
    attach(model, module.weights.makes())
    optimizer.optimize_ir(model)
    name_dimensions(model, module.inputs)
    forget_origins(model)
    check_operators(model, config)
    return model


def _example(name: str, shape: Shape, narrow: torch.dtype) -> torch.Tensor:
    sizes = [size if isinstance(size, int) else EXAMPLE[size] for size in shape]
    dtypes = {"past_key_values": narrow, "past_records": torch.float32}
    return torch.zeros(sizes, dtype=dtypes.get(name.split(".")[0], torch.int64))


def _dynamic(shape: Shape) -> dict[int, Any]:
    """The dimensions that may have any size; the total follows from others."""
    dims = {each: torch.export.Dim(each, min=1) for each in (BATCH, TOKENS, PAST)}
    free = {**dims, TOTAL: torch.export.Dim.AUTO}
    return {i: free[size] for i, size in enumerate(shape) if isinstance(size, str)}


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
        hint="A model treats any number of tokens alike; only mixers let them meet.",
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


def name_dimensions(model: ir.Model, inputs: Mapping[str, Shape]) -> None:
    """Gives dimensions the names that they have in inputs instead of PyTorch's symbols."""
    names: dict[str, str] = {}
    for value in model.graph.inputs:
        assert value.shape is not None, "an input has a shape"
        for dim, name in zip(value.shape, inputs[str(value.name)], strict=True):
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
