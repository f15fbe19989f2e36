"""Messages of any content: each is answered, or refused with a status that says why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import hypothesis.strategies as st
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings

from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.grpc.stubs import open_inference_pb2 as oip
from tests.serve.grpc.conftest import served
from tests.support.fake_engine import FakeEngine, FakeModels, says

GENERATE = "/ingot.v1.Inference/Generate"
INFER = "/inference.GRPCInferenceService/ModelInfer"
KINDS = {GENERATE: v1.GenerateRequest, INFER: oip.ModelInferRequest}
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
}
LEAKS = ("Traceback", "/ingot/", ".py")

_INTEGERS = st.one_of(st.integers(0, 5), st.sampled_from([2**31 - 1, 2**31, 2**32 - 1]))
_VALUES = {
    FieldDescriptor.CPPTYPE_STRING: st.one_of(st.sampled_from(["m", "text", ""]), st.text()),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: _INTEGERS,
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: st.just(0),
}


def fill(message: Any, data: st.DataObject, depth: int = 0) -> Any:
    """Sets some fields of a message to something."""
    for field in message.DESCRIPTOR.fields:
        if not data.draw(st.booleans()):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue  # the fields of HTTP's fuzzer have them
        if field.message_type is not None:
            if depth < 3:
                child = getattr(message, field.name)
                fill(child.add() if field.is_repeated else child, data, depth + 1)
        elif field.type == FieldDescriptor.TYPE_BYTES:
            value = data.draw(st.binary(max_size=16))
            put(message, field, value)
        else:
            put(message, field, data.draw(_VALUES[field.cpp_type]))
    return message


def put(message: Any, field: Any, value: object) -> None:
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


@pytest.fixture(scope="module")
def ask() -> Iterator[Any]:
    """Sends bytes to a method of one server; the code and the text of its refusal, if any."""
    loop = asyncio.new_event_loop()
    context = served(FakeModels(m=FakeEngine(says("a"))))
    client = loop.run_until_complete(context.__aenter__())

    async def call(method: str, body: bytes) -> tuple[grpc.StatusCode, str]:
        try:
            await client.channel.unary_unary(method)(body, timeout=30)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return grpc.StatusCode.OK, ""

    yield lambda method, body: loop.run_until_complete(call(method, body))
    loop.run_until_complete(context.__aexit__(None, None, None))
    loop.close()


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("count", [20, pytest.param(600, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("method", KINDS)
def test_any_message_is_answered_or_refused(ask: Any, method: str, count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=[*HealthCheck])
    @given(st.data())
    def check(data: st.DataObject) -> None:
        message = fill(KINDS[method](), data)
        code, text = ask(method, message.SerializeToString())
        assert code in REFUSALS | {grpc.StatusCode.OK}, (code, text)
        assert not any(leak in text for leak in LEAKS), text

    check()


@pytest.mark.parametrize("count", [20, pytest.param(600, marks=pytest.mark.thorough)])
def test_any_bytes_are_answered_or_refused(ask: Any, count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=[*HealthCheck])
    @given(st.binary(max_size=64))
    def check(body: bytes) -> None:
        code, text = ask(GENERATE, body)
        assert code in REFUSALS | {grpc.StatusCode.OK}, (code, text)
        assert not any(leak in text for leak in LEAKS), text

    check()
