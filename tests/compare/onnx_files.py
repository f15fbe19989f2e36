"""Small ONNX files, made by the package itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

INT64, FLOAT, HALF = TensorProto.INT64, TensorProto.FLOAT, TensorProto.FLOAT16


def write_table(
    path: Path,
    table: npt.NDArray[np.float32],
    *,
    inputs: Sequence[str] = ("input_ids", "position_ids"),
    output: str = "logits",
    opset: int = 18,
    dtype: int = FLOAT,
    past_shape: Sequence[int | str] = (1, 2, "past", 4),
    last_alone: bool = False,
) -> Path:
    """A model whose logits are a row of the table, plus the position, plus the number of tokens
    that the mask shows, plus the sum of all keys and values. `last_alone` leaves those of the last
    position."""
    values = [helper.make_tensor_value_info(n, *_kind(n, dtype, past_shape)) for n in inputs]
    narrow = table.astype(helper.tensor_dtype_to_np_dtype(dtype))
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["row"])]
    total = "row"
    for name in inputs:
        if name == "position_ids":
            nodes += [
                helper.make_node("Cast", [name], ["place"], to=dtype),
                helper.make_node("Unsqueeze", ["place", "last"], ["column"]),
            ]
        elif name == "attention_mask":
            nodes += [
                helper.make_node("Cast", [name], ["seen"], to=dtype),
                helper.make_node("ReduceSum", ["seen"], ["column"]),
            ]
        elif name.startswith("past"):
            nodes += [helper.make_node("ReduceSum", [name], ["column"], keepdims=0)]
        else:
            continue
        nodes = [_renamed(node, name) for node in nodes]
        nodes.append(helper.make_node("Add", [total, f"column.{name}"], [f"with.{name}"]))
        total = f"with.{name}"
    if last_alone:
        nodes.append(helper.make_node("Slice", [total, "-1", "end", "one"], ["end row"]))
        total = "end row"
    nodes.append(helper.make_node("Identity", [total], [output]))
    graph = helper.make_graph(
        nodes,
        "table",
        values,
        [helper.make_tensor_value_info(output, dtype, ["batch", "tokens", table.shape[1]])],
        [
            numpy_helper.from_array(narrow, "table"),
            *(
                numpy_helper.from_array(np.array([value], np.int64), name)
                for name, value in (("last", 2), ("one", 1), ("-1", -1), ("end", 2**62))
            ),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.save(model, path)
    return path


def _kind(name: str, dtype: int, past_shape: Sequence[int | str]) -> tuple[int, list[int | str]]:
    if name.startswith("past"):
        return dtype, list(past_shape)
    return INT64, ["batch", "total" if name == "attention_mask" else "tokens"]


def _renamed(node: onnx.NodeProto, name: str) -> onnx.NodeProto:
    """The node with names of its own for the values that each input has."""
    own = {"column": f"column.{name}", "place": f"place.{name}", "seen": f"seen.{name}"}
    for names in (node.input, node.output):
        names[:] = [own.get(each, each) for each in names]
    return node
