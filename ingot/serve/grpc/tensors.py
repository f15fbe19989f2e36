"""Tensors of the open inference protocol as lists of values, and back."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ingot.serve.grpc.stubs import open_inference_pb2 as oip
from ingot.serve.openai.fields import FieldError


class Kind(NamedTuple):
    """A type of elements: the field that holds them, and one of them in raw bytes."""

    field: str
    format: str


KINDS = {
    "BOOL": Kind("bool_contents", "<?"),
    "INT32": Kind("int_contents", "<i"),
    "INT64": Kind("int64_contents", "<q"),
    "UINT32": Kind("uint_contents", "<I"),
    "UINT64": Kind("uint64_contents", "<Q"),
    "FP32": Kind("fp32_contents", "<f"),
    "FP64": Kind("fp64_contents", "<d"),
    "BYTES": Kind("bytes_contents", ""),
}


class Tensor(NamedTuple):
    """An output: its name, the type of its elements, and these; its shape is their number."""

    name: str
    datatype: str
    values: Sequence[Any]


def inputs_of(request: Any) -> dict[str, list[Any]]:
    """The elements of each input. Raises FieldError for one whose contents do not fit."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise FieldError(
            "raw_input_contents",
            f"raw_input_contents has {len(raw)} items for {len(request.inputs)} inputs",
        )
    found = {}
    for i, tensor in enumerate(request.inputs):
        kind = KINDS.get(tensor.datatype)
        if kind is None:
            raise _wrong(tensor, f"has type {tensor.datatype!r}; supported: {', '.join(KINDS)}")
        values = _from_raw(tensor, kind, raw[i]) if raw else [*getattr(tensor.contents, kind.field)]
        count = 1
        for size in tensor.shape:
            count *= size
        if len(values) != count:
            raise _wrong(tensor, f"has {len(values)} elements, and its shape says {count}")
        found[tensor.name] = values
    return found


def texts(name: str, values: Sequence[Any]) -> list[str]:
    """Elements of type BYTES as text. Raises FieldError."""
    try:
        return [value.decode() for value in values]
    except (AttributeError, UnicodeDecodeError):
        raise FieldError(name, f"{name} is no text in UTF-8 of type BYTES") from None


def parameters_of(request: Any) -> dict[str, Any]:
    """The parameters; a text that is a list or an object in JSON becomes that."""
    found = {}
    for name, parameter in request.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is not None:
            value = getattr(parameter, kind)
            found[name] = _from_json(name, value) if kind == "string_param" else value
    return found


def response_of(request: Any, outputs: Sequence[Tensor], *, final: bool | None = None) -> Any:
    """The outputs that are asked for, raw where the inputs are. Raises FieldError."""
    by_name = {tensor.name: tensor for tensor in outputs}
    wanted = [each.name for each in request.outputs] or [*by_name]
    if unknown := [name for name in wanted if name not in by_name]:
        raise FieldError(
            "outputs",
            f"there is no output {unknown[0]!r}",
            hint=f"There are: {', '.join(by_name)}.",
        )
    response = oip.ModelInferResponse(model_name=request.model_name, id=request.id)
    if final is not None:
        response.parameters["triton_final_response"].bool_param = final
    for tensor in (by_name[name] for name in wanted):
        told = response.outputs.add(
            name=tensor.name, datatype=tensor.datatype, shape=[len(tensor.values)]
        )
        kind = KINDS[tensor.datatype]
        if request.raw_input_contents:
            response.raw_output_contents.append(_to_raw(kind, tensor.values))
        else:
            getattr(told.contents, kind.field).extend(tensor.values)
    return response


def _from_raw(tensor: Any, kind: Kind, data: bytes) -> list[Any]:
    try:
        if not kind.format:
            return [*_elements(data)]
        return [value for (value,) in struct.iter_unpack(kind.format, data)]
    except struct.error:
        raise _wrong(tensor, f"has {len(data)} raw bytes, which are no elements") from None


def _elements(data: bytes) -> Iterator[bytes]:
    """Elements of type BYTES, each with its length before it. Raises struct.error."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        at += 4
        if at + length > len(data):
            raise struct.error("an element is longer than what is there")
        yield data[at : at + length]
        at += length


def _to_raw(kind: Kind, values: Sequence[Any]) -> bytes:
    if kind.format:
        return b"".join(struct.pack(kind.format, value) for value in values)
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def _from_json(name: str, text: str) -> Any:
    if not text.startswith(("[", "{")):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise FieldError(name, f"{name} is no JSON: {error}") from None


def object_of(name: str, text: str) -> Mapping[str, Any]:
    """An object in JSON. Raises FieldError."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise FieldError(name, f"{name} is no object in JSON: {error}") from None


def _wrong(tensor: Any, what: str) -> FieldError:
    return FieldError(f"inputs[{tensor.name}]", f"input {tensor.name!r} {what}")
