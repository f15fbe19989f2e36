"""Streams of requests of the open inference protocol, by grpcio's own client."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from ingot.serve.edge.record import CURRENT, Record
from ingot.serve.engine import Piece, Progress
from ingot.serve.grpc.call import HEALTH, LIVE, REFLECTION, part_of_stream, recorded
from ingot.serve.grpc.open_inference import MAX_AHEAD, MAX_PARTS, OpenInference
from ingot.serve.requests.context import ServerContext
from tests.serve.grpc.conftest import HANGS_SECONDS, served
from tests.serve.grpc.test_open_inference import outputs, text_request
from tests.support.fake_engine import FakeEngine, FakeModels, says


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


def test_a_client_that_sends_and_does_not_read_is_not_read_any_further(run):
    taken = 0

    async def requests():
        nonlocal taken
        while True:
            taken += 1
            yield text_request("a", model_name="m")
            await asyncio.sleep(0)

    async def work():
        models = FakeModels(m=FakeEngine(says("Ro", "meo")))
        async with served(models) as client:
            service = OpenInference(ServerContext(models=models), client.edge)
            record = CURRENT.set(Record("gRPC", "/x", "id"))
            answers = service.ModelStreamInfer(requests(), None)
            await anext(answers)
            bound = MAX_AHEAD + MAX_PARTS + 2
            for _ in range(50 * bound):
                await asyncio.sleep(0)
            held = taken
            for _ in range(4 * bound):  # whoever reads goes on
                await anext(answers)
            await answers.aclose()
            CURRENT.reset(record)
            return bound, held

    bound, held = run(work())
    assert MAX_PARTS <= held <= bound < taken


def test_a_request_of_a_stream_has_a_record_of_its_own():
    stream = Record(method="gRPC", path="x", request_id="a", key="bob", began=-1.0, awaited=False)
    stream.fields["model"] = "m"
    token = CURRENT.set(stream)
    try:
        part = part_of_stream(3)
    finally:
        CURRENT.reset(token)
    assert (part.request_id, part.key, part.awaited, part.fields) == ("a-3", "bob", True, {})
    assert part.began > stream.began


@pytest.mark.parametrize("path", [LIVE, f"{HEALTH}Watch", f"{REFLECTION}v1alpha.ServerReflection"])
def test_no_drain_waits_for_probes_and_reflection_and_nobody_counts_them(run, path):
    counted = []

    class Watching:
        opened = closed = counted.append

    async def work():
        for each in (path, "/ingot.v1.Inference/Generate"):
            with recorded(Watching(), Record(method="gRPC", path=each, request_id="a")):
                pass

    run(work())
    assert [record.path for record in counted] == ["/ingot.v1.Inference/Generate"] * 2
