"""The open inference protocol, version 2, by grpcio's own client."""

from __future__ import annotations

import asyncio
import json
import struct

import grpc
import pytest

from ingot.serve.engine import Piece, Progress
from ingot.serve.grpc.stubs import open_inference_pb2 as oip
from ingot.version import __version__
from tests.serve.grpc.conftest import failure, served
from tests.support.fake_engine import FakeEngine, FakeModels, bundled_tokenizer, says


def text_request(*texts: str, raw: bool = False, **fields) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(**{"model_name": "m", "id": "7", **fields})
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[len(texts)])
    values = [text.encode() for text in texts]
    if raw:
        data = b"".join(struct.pack("<I", len(value)) + value for value in values)
        request.raw_input_contents.append(data)
    else:
        tensor.contents.bytes_contents.extend(values)
    return request


def token_request(*ids: int, kind: str = "INT64") -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="input_ids", datatype=kind, shape=[1, len(ids)])
    field = {"INT64": tensor.contents.int64_contents, "INT32": tensor.contents.int_contents}[kind]
    field.extend(ids)
    return request


def outputs(answer) -> dict[str, list]:
    names = {"BYTES": "bytes_contents", "INT64": "int64_contents"}
    found = {o.name: [*getattr(o.contents, names[o.datatype])] for o in answer.outputs}
    assert all([*o.shape] == [len(found[o.name])] for o in answer.outputs)
    return found


def asked(run, request, script=None):
    """The answer, and the jobs that the engine got."""

    async def work():
        engine = FakeEngine(script or says("Ro", "meo"))
        async with served(FakeModels(m=engine)) as client:
            return await client.oip.ModelInfer(request), engine.jobs

    return run(work())


def test_text_in_text_out(run):
    answer, (job,) = asked(run, text_request("ROMEO:"))
    assert outputs(answer) == {
        "text_output": [b"Romeo"],
        "finish_reason": [b"stop"],
        "num_output_tokens": [2],
        "output_ids": [100, 101],
    }
    assert (answer.model_name, answer.id) == ("m", "7") and job.token_ids


@pytest.mark.parametrize("kind", ["INT32", "INT64"])
def test_tokens_in(run, kind):
    _, (job,) = asked(run, token_request(5, 6, 7, kind=kind))
    assert job.token_ids == [5, 6, 7]


def test_a_batch_has_an_element_for_each_completion(run):
    request = text_request("a", "b")
    request.parameters["n"].int64_param = 2
    request.parameters["temperature"].double_param = 0.5
    answer, jobs = asked(run, request)
    assert outputs(answer)["text_output"] == [b"Romeo"] * 4 and len(jobs) == 2
    assert outputs(answer)["output_ids"] == [100, 101] * 4


def test_completions_of_a_batch_are_in_its_order_whichever_ends_first(run):
    async def work():
        gate = asyncio.Event()

        def script(job):
            name = bundled_tokenizer().decode(job.token_ids)
            if name == "a":
                yield gate
            gate.set()
            yield Progress([Piece(0, name, [5], None, "stop")], True)

        async with served(FakeModels(m=FakeEngine(script))) as client:
            return outputs(await client.oip.ModelInfer(text_request("a", "b")))["text_output"]

    assert run(work()) == [b"a", b"b"]


class Aliased(FakeModels):
    def name_of(self, name: str) -> str:
        return super().name_of({"alias": "m"}.get(name, name))


def test_a_batch_is_counted_to_its_model_and_each_completion_by_itself(run):
    async def work():
        async with served(Aliased(m=FakeEngine(says("Ro", "meo")))) as client:
            await client.oip.ModelInfer(text_request("a", "b", model_name="alias"))
        return client.edge.telemetry.board.exposition()[0].decode()

    told = run(work())
    assert 'ingot_request_max_num_generation_tokens_sum{model_name="m"} 2.0' in told
    assert 'ingot_request_generation_tokens_sum{model_name="m"} 4.0' in told
    assert "alias" not in told


def test_who_asks_in_raw_bytes_is_answered_so(run):
    answer, _ = asked(run, text_request("a", "b", raw=True))
    names = [output.name for output in answer.outputs]
    raw = dict(zip(names, answer.raw_output_contents, strict=True))
    assert raw["text_output"] == (struct.pack("<I", 5) + b"Romeo") * 2
    assert raw["output_ids"] == struct.pack("<4q", 100, 101, 100, 101)
    assert not any(output.HasField("contents") for output in answer.outputs)


def test_only_the_outputs_that_are_asked_for_come(run):
    request = text_request("a")
    request.outputs.add(name="output_ids")
    answer, _ = asked(run, request)
    assert outputs(answer) == {"output_ids": [100, 101]}


def test_parameters_reach_the_engine(run):
    request = text_request("a")
    request.parameters["max_tokens"].int64_param = 5
    request.parameters["top_p"].double_param = 0.5
    request.parameters["ignore_eos"].bool_param = True
    request.parameters["stop"].string_param = '["x", "y"]'
    tensor = request.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(json.dumps({"seed": 3, "top_k": 4}).encode())
    _, (job,) = asked(run, request)
    expected = {"max_tokens": 5, "top_p": 0.5, "ignore_eos": True, "stop": ["x", "y"], "seed": 3}
    assert expected | {"top_k": 4} == {name: job.params[name] for name in (*expected, "top_k")}


def broken(**changes) -> oip.ModelInferRequest:
    request = text_request("a")
    for name, value in changes.items():
        setattr(request.inputs[0], name, value)
    return request


def with_raw(data: bytes, kind: str = "BYTES") -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name="m", raw_input_contents=[data])
    request.inputs.add(name="text_input", datatype=kind, shape=[1])
    return request


def with_sampling(text: bytes) -> oip.ModelInferRequest:
    request = text_request("a")
    tensor = request.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text)
    return request


def two_raw() -> oip.ModelInferRequest:
    request = text_request("a", raw=True)
    request.raw_input_contents.append(b"")
    return request


def unknown_output() -> oip.ModelInferRequest:
    request = text_request("a")
    request.outputs.add(name="logits")
    return request


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (oip.ModelInferRequest(model_name="m"), "either text_input or input_ids"),
        (broken(name="image"), "there is no input 'image'"),
        (broken(datatype="FP16"), "has type 'FP16'"),
        (broken(datatype="INT64"), "has 0 elements, and its shape says 1"),
        (with_raw(b"\x09\0\0\0a"), "are no elements"),
        (with_raw(b"\x01\0"), "are no elements"),
        (with_raw(b"\x01\0\0\0\xff"), "no text in UTF-8"),
        (with_raw(b"\x01\0\0", "INT64"), "are no elements"),
        (with_raw(b"\0" * 8, "INT64"), "no text in UTF-8"),
        (with_sampling(b"[1]"), "no object in JSON"),
        (with_sampling(b'{"top_p": 7}'), "top_p"),
        (two_raw(), "2 items for 1 inputs"),
    ],
)
def test_what_does_not_fit_is_said(run, request_, says):
    async def work():
        engine = FakeEngine(lambda job: ())
        async with served(FakeModels(m=engine)) as client:
            found = await failure(client.oip.ModelInfer(request_))
        assert engine.jobs == []
        return found

    code, text, _ = run(work())
    assert code == grpc.StatusCode.INVALID_ARGUMENT and says in text


def test_an_unknown_output_is_refused(run):
    async def work():
        async with served(FakeModels(m=FakeEngine(lambda job: says("a")(job)))) as client:
            return await failure(client.oip.ModelInfer(unknown_output()))

    code, text, _ = run(work())
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "'logits'" in text


def test_unknown_models_and_versions_are_not_found(run):
    async def work():
        async with served(FakeModels(m=FakeEngine(says("a")))) as client:
            calls = [
                client.oip.ModelInfer(text_request("a", model_name="other")),
                client.oip.ModelInfer(text_request("a", model_version="2")),
                client.oip.ModelReady(oip.ModelReadyRequest(name="other")),
                client.oip.ModelMetadata(oip.ModelMetadataRequest(name="m", version="2")),
            ]
            return [(await failure(call))[0] for call in calls]

    assert run(work()) == [grpc.StatusCode.NOT_FOUND] * 4


def test_the_server_and_its_models_describe_themselves(run):
    async def work():
        models = FakeModels(m=FakeEngine(says("a")))
        async with served(models) as client:
            api = client.oip
            live = await api.ServerLive(oip.ServerLiveRequest())
            ready = await api.ServerReady(oip.ServerReadyRequest())
            model = await api.ModelReady(oip.ModelReadyRequest(name="m", version="1"))
            models.states["m"] = "failed"
            later = (
                await api.ServerReady(oip.ServerReadyRequest()),
                await api.ModelReady(oip.ModelReadyRequest(name="m")),
            )
            server = await api.ServerMetadata(oip.ServerMetadataRequest())
            metadata = await api.ModelMetadata(oip.ModelMetadataRequest(name="m"))
        return live.live, ready.ready, model.ready, [r.ready for r in later], server, metadata

    live, ready, model, later, server, metadata = run(work())
    assert live and ready and model and later == [False, False]
    assert (server.name, server.version) == ("ingot", __version__)
    assert (metadata.name, metadata.platform, [*metadata.versions]) == ("m", "ingot", ["1"])
    assert {tensor.name: tensor.datatype for tensor in metadata.inputs} == {
        "text_input": "BYTES",
        "input_ids": "INT64",
        "sampling_parameters": "BYTES",
    }
