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
from tests.serve.grpc.conftest import HANGS_SECONDS, failure, served
from tests.support.fake_engine import FakeEngine, FakeModels, says


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


def test_a_stream_answers_requests_as_they_run_and_outlives_those_that_fail(run):
    async def work():
        async with served(FakeModels(m=FakeEngine(says("Ro", "meo")))) as client:
            bad = text_request("a", id="bad")
            bad.parameters["top_p"].double_param = 7
            requests = [bad, text_request("a", id="good"), text_request("b", id="also")]
            call = client.oip.ModelStreamInfer(iter(requests))
            return [answer async for answer in call]

    answers = run(work())
    (failed,) = (each for each in answers if each.error_message)
    assert failed.infer_response.id == "bad" and "top_p" in failed.error_message
    for name in ("good", "also"):
        parts = [e.infer_response for e in answers if e.infer_response.id == name]
        assert [outputs(part)["text_output"] for part in parts] == [[b"Ro"], [b"meo"]]
        finals = [part.parameters["triton_final_response"].bool_param for part in parts]
        assert finals == [False, True]


def test_a_stream_waits_for_its_requests_when_the_server_stops_and_not_for_further_ones(run):
    go = asyncio.Event()

    def script(job):
        yield Progress([Piece(0, "Ro", [1])])
        yield go
        yield Progress([Piece(0, "meo", [2], None, "stop")], True)

    async def work():
        async with served(FakeModels(m=FakeEngine(script))) as client:
            call = client.oip.ModelStreamInfer()  # nobody says that nothing more comes
            await call.write(text_request("a"))
            texts = [outputs((await call.read()).infer_response)["text_output"]]
            client.edge.draining = True
            await call.write(text_request("b", id="late"))
            late = await call.read()
            stopping = asyncio.create_task(client.server.stop(HANGS_SECONDS))
            go.set()
            while (answer := await call.read()) is not grpc.aio.EOF:
                texts.append(outputs(answer.infer_response)["text_output"])
            await stopping
            return texts, late, await call.code()

    texts, late, code = run(work())
    assert texts == [[b"Ro"], [b"meo"]] and code == grpc.StatusCode.OK
    assert late.infer_response.id == "late" and "about to end" in late.error_message


def test_each_request_of_a_stream_is_logged_and_counted_as_one_of_http(run, caplog):
    caplog.set_level("INFO", logger="ingot.serve")

    async def work():
        async with served(FakeModels(m=FakeEngine(says("Ro", "meo")))) as client:
            bad = text_request("a")
            bad.parameters["top_p"].double_param = 7
            metadata = [("x-request-id", "mine")]
            call = client.oip.ModelStreamInfer(iter([text_request("a"), bad]), metadata=metadata)
            assert len([each async for each in call]) == 3
            number = client.edge.telemetry.board.number
            return [number("http_responses", status).value for status in ("200", "400")]

    assert run(work()) == [2, 1]  # the stream itself is answered, too
    lines = [record.fields for record in caplog.records if record.message == "request"]
    told = {(line["id"], line["status"], line["error"], line.get("tokens")) for line in lines}
    assert told == {
        ("mine-1", 200, None, 2),
        ("mine-2", 400, "invalid_value", None),
        ("mine", 200, None, None),
    }
    assert {line["method"] for line in lines} == {"gRPC"}


def test_dropping_a_stream_aborts_what_it_asked_for(run):
    def script(job):
        yield Progress([Piece(0, "a", [1])])
        yield asyncio.Event()  # never

    async def work():
        engines = [FakeEngine(script), FakeEngine(script)]
        models = FakeModels(m=engines[0], other=engines[1])
        async with served(models) as client:
            requests = [text_request("a"), text_request("b", model_name="other")]
            call = client.oip.ModelStreamInfer(iter(requests))
            await call.read()
            await call.read()
            call.cancel()
            for engine in engines:
                await engine.ended.wait()
        assert [len(engine.aborted) for engine in engines] == [1, 1] and models.num_leases == 0

    run(work())
